"""Runs a function on real ranks: processes in a gloo process group."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import queue
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 180.0

_CONTEXT = multiprocessing.get_context("forkserver")
# The server imports these modules once; the processes of the ranks are forked from it.
_CONTEXT.set_forkserver_preload(
    ["torchrec.models.dlrm", "torch.distributed.optim", "neuroshard_pipeline.torchrec_bridge.planner"]
)


def run_ranks(
    world_size: int, folder: Path, function: Callable[..., Any], *args: Any, local_world_size: int | None = None
) -> list[Any]:
    """The results of `function(rank, world_size, *args)` on every rank; an error on any rank fails the test.

    TorchRec takes each block of `local_world_size` consecutive ranks for one host; None stands for a single host.
    """
    results = _CONTEXT.Queue()
    rendezvous = str(folder / f"rendezvous-{time.monotonic_ns()}")
    ranks = [
        _CONTEXT.Process(
            target=_rank,
            args=(rank, world_size, local_world_size or world_size, rendezvous, results, function, args),
            daemon=True,
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    try:
        return _collected(results, ranks)
    finally:
        for process in ranks:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _collected(results: Any, ranks: list[Any]) -> list[Any]:
    deadline = time.monotonic() + SECONDS
    found: dict[int, Any] = {}
    while len(found) < len(ranks):
        try:
            rank, result, error = results.get(timeout=0.5)
        except queue.Empty:
            silent = [rank for rank, process in enumerate(ranks) if rank not in found and not process.is_alive()]
            assert not silent, f"ranks {silent} ended without an answer"
            assert time.monotonic() < deadline, f"only ranks {sorted(found)} answered within {SECONDS} s"
            continue
        assert error is None, f"rank {rank}:\n{error}"
        found[rank] = result
    return [found[rank] for rank in range(len(ranks))]


def _rank(
    rank: int,
    world_size: int,
    local_world_size: int,
    rendezvous: str,
    results: Any,
    function: Callable[..., Any],
    args: tuple,
) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(LOCAL_RANK=str(rank % local_world_size), LOCAL_WORLD_SIZE=str(local_world_size))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=150),
    )
    try:
        results.put((rank, function(rank, world_size, *args), None))
    except BaseException:  # if its block raises nothing, `pytest.raises` raises a BaseException
        results.put((rank, None, traceback.format_exc()))
    finally:
        dist.destroy_process_group()
