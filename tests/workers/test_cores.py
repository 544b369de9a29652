"""A worker process is pinned to one core, and its scheduler depends on whether others may share this core."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from workers.item_functions import settled

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="tests Linux's schedulers")


@pytest.mark.parametrize(("size", "is_batch"), [(None, True), (1, False), (100_000, True)])
def test_a_process_is_pinned_and_has_the_batch_scheduler_only_if_it_may_share_its_core(size, is_batch):
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as process:
        cores, scheduler = process.submit(settled, 3, size).result()
    assert cores == 1
    assert scheduler == (os.SCHED_BATCH if is_batch else os.SCHED_OTHER)
