"""Processes settle on the cores that this process may use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="tests Linux's schedulers")

SETTLE = (
    "import os; from neuroshard_pipeline.workers.cores import settle_on_core; settle_on_core({arguments}); "
    "print(len(os.sched_getaffinity(0)), os.sched_getscheduler(0))"
)


@pytest.mark.parametrize(("size", "is_batch"), [("None", True), ("1", False), ("100_000", True)])
def test_a_process_is_pinned_and_yields_only_to_processes_that_share_its_core(size: str, is_batch: bool):
    code = SETTLE.format(arguments=f"3, {size}")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["1", str(os.SCHED_BATCH if is_batch else os.SCHED_OTHER)]
