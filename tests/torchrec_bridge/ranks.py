"""Runs a function on real ranks: processes in a gloo process group.

The processes stay for the next function with as many ranks, because a new process computes for a tenth of a second more
than one that has trained before. Every function has a process group of its own. Functions of another number of ranks
have new processes, because torch counts the groups of a process to name the next one. After an error, too, new
processes are started.
"""

from __future__ import annotations

import datetime
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import warm

SECONDS = 180.0
#: What gloo says if a rank cannot connect, which is rare. The function has not begun then.
_NOT_CONNECTED = "connectFullMesh failed"

_CONTEXT = multiprocessing.get_context("forkserver")
#: The processes of the ranks, and this end of the pipe to each.
_RANKS: list[tuple[Any, Connection]] = []


def run_ranks(
    world_size: int, folder: Path, function: Callable[..., Any], *args: Any, local_world_size: int | None = None
) -> list[Any]:
    """The results of `function(rank, world_size, *args)` on every rank; an error on any rank fails the test.

    TorchRec takes each block of `local_world_size` consecutive ranks for one host; None stands for a single host.
    """
    given = world_size, local_world_size or world_size, folder, function, args
    try:
        return _run(*given)
    except AssertionError as error:
        if _NOT_CONNECTED not in str(error):
            raise
        return _run(*given)


def _run(world_size: int, local_world_size: int, folder: Path, function: Callable[..., Any], args: tuple) -> list[Any]:
    if len(_RANKS) != world_size:
        _end_ranks()
        _RANKS.extend(_started() for _ in range(world_size))
    pipes = [pipe for _, pipe in _RANKS]
    rendezvous = str(folder / f"rendezvous-{time.monotonic_ns()}")
    try:
        for rank, pipe in enumerate(pipes):
            pipe.send((rank, world_size, local_world_size, rendezvous, function, args))
        return _collected(pipes)
    except BaseException:
        _end_ranks()
        raise


def _started() -> tuple[Any, Connection]:
    _CONTEXT.set_forkserver_preload(warm.MODULES)  # has an effect if no server runs yet
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _end_ranks() -> None:
    for process, pipe in _RANKS:
        process.kill()
        process.join()
        pipe.close()
    _RANKS.clear()


def _collected(pipes: list[Connection]) -> list[Any]:
    deadline = time.monotonic() + SECONDS
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in found}
        ready = multiprocessing.connection.wait(waiting, timeout=deadline - time.monotonic())
        assert ready, f"only ranks {sorted(found)} answered within {SECONDS} s"
        for pipe in ready:
            rank = waiting[pipe]
            try:
                found[rank], error = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} ended without an answer") from None
            assert error is None, f"rank {rank}:\n{error}"
    return [found[rank] for rank in range(len(pipes))]


def _serve(pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            task = pipe.recv()
        except EOFError:  # the tests have ended
            return
        try:
            pipe.send((_answer(*task), None))
        except BaseException:  # if its block raises nothing, `pytest.raises` raises a BaseException
            pipe.send((None, traceback.format_exc()))


def _answer(
    rank: int, world_size: int, local_world_size: int, rendezvous: str, function: Callable[..., Any], args: tuple
) -> Any:
    os.environ.update(LOCAL_RANK=str(rank % local_world_size), LOCAL_WORLD_SIZE=str(local_world_size))
    import torch.distributed as dist
    from torchrec.distributed import comm

    # TorchRec keeps the groups of a host's ranks; those of the previous function have ended.
    comm._INTRA_PG = comm._CROSS_PG = None
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=150),
    )
    try:
        return function(rank, world_size, *args)
    finally:
        dist.destroy_process_group()
