"""Jobs of real and virtual ranks for `bench_virtual_ranks.py`: gloo's collectives alone, and steps without turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.torchrec_bridge.ranks import RankParams, join_ranks, rank_team
from neuroshard_pipeline.torchrec_bridge.truth import steps
from neuroshard_pipeline.torchrec_bridge.virtual import log as virtual_log
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective

_REPEATS, _QUANTILE = 40, 0.25


def set_up_gloo(rank: int, world_size: int, params: RankParams, store_file: str) -> Callable[[Any], list[float]]:
    """Join a real group; the returned function times collectives, given as what every rank logged."""
    join_ranks(rank, world_size, params, store_file)
    return lambda collectives: [_collective_ms(each, rank) for each in collectives]


def _collective_ms(of_ranks: Sequence[Collective], rank: int) -> float:
    run, times = _collective(of_ranks, rank), []
    for _ in range(_REPEATS):
        dist.barrier()
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.quantile(times, _QUANTILE))


def _collective(of_ranks: Sequence[Collective], rank: int) -> Callable[[], Any]:
    own, world = of_ranks[rank], len(of_ranks)
    if own.kind == "alltoall":
        splits, received = list(own.sent_bytes), [each.sent_bytes[rank] for each in of_ranks]
        given, out = torch.ones(sum(splits), dtype=torch.uint8), torch.ones(sum(received), dtype=torch.uint8)
        return lambda: dist.all_to_all_single(out, given, received, splits)
    whole_buffer = torch.ones(own.sent_bytes[0] // 4)
    part = torch.ones(len(whole_buffer) // world)
    if own.kind == "all_reduce":
        return lambda: dist.all_reduce(whole_buffer)
    if own.kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole_buffer)
    return lambda: dist.all_gather_into_tensor(whole_buffer, part)


class GlooTimes:
    """A network whose collectives take as long as gloo's on real ranks; each one is measured at its first use."""

    def __init__(self, world_size: int, params: RankParams) -> None:
        self._context, self._timeout_s = (
            rank_team(world_size, set_up_gloo, (world_size, params), params),
            params.timeout_s,
        )
        self._known: dict[tuple[Collective, ...], float] = {}

    def __enter__(self) -> GlooTimes:
        self._team = self._context.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._context.__exit__(kind, error, at)

    def __call__(self, collectives: Sequence[Collective], starts_ms: FloatArray) -> FloatArray:
        """The times when the collective is done."""
        key = tuple(collectives)
        if key not in self._known:
            self._known[key] = max(of_rank[0] for of_rank in self._team.ask([key], self._timeout_s))
        return np.full(len(starts_ms), starts_ms.max() + self._known[key])


def set_up_without_turns(*arguments: Any) -> Callable[[Any], Any]:
    """Like `steps.set_up_rank`, but ranks do not take turns on their core."""
    virtual_log.fcntl = type("NoLocks", (), {"flock": lambda *_: None, "LOCK_EX": 0, "LOCK_UN": 0})
    return steps.set_up_rank(*arguments)
