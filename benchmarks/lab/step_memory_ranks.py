"""What the ranks of `step_memory.py` do: steps of TorchRec's embedding modules with PyTorch's profiler of memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.ranks import join_ranks
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams

WORLD, BATCH = 2, 2048
PARAMS = StepParams(
    backend="gloo",
    threads=1,
    timeout_s=600,
    learning_rate=0.01,
    num_batches=1,
    rounds=1,
    warmup_steps=3,
    steps_per_round=1,
    most_plans_held=1,
    seed=0,
)

#: Collectives of torch.distributed that TorchRec calls.
_COLLECTIVES = ("all_to_all_single", "reduce_scatter_tensor", "all_gather_into_tensor")


class _Waited(dist.Work):
    """A collective that returns a little after it has ended.

    The profiler misses tensors that gloo's own thread frees. After this pause, only the rank's main thread has them.
    """

    def __init__(self, work: dist.Work) -> None:
        super().__init__()
        self._work = work

    def wait(self, *arguments: Any) -> bool:
        done = self._work.wait(*arguments)
        time.sleep(0.005)
        return done


def _waiting(collective: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        work = collective(*arguments, **options)
        return None if work is None else _Waited(work)

    return call


def set_up(rank: int, store_file: str) -> Callable[[Plan], list[tuple[int, str]]]:
    """Join the group; the returned function gives the bytes and the operator of everything alive at a plan's peak."""
    device = join_ranks(rank, WORLD, PARAMS, store_file)
    import torch

    for name in _COLLECTIVES:
        setattr(torch.distributed, name, _waiting(getattr(torch.distributed, name)))
    from neuroshard_pipeline.torchrec_bridge.train_check.batches import drawn_batches
    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import RankIds, ShardedEmbeddings

    def measure(plan: Plan) -> list[tuple[int, str]]:
        task, share = plan.task, BATCH // WORLD
        batch = drawn_batches(task.tables, task.batch_size, 1, PARAMS.seed)[0]
        gc.collect()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            ids = RankIds(task.tables, batch.ids, slice(rank * share, (rank + 1) * share), device)
            ids._parts = [  # NumPy allocated these tensors
                (names, values.clone(), weights, lengths.clone()) for names, values, weights, lengths in ids._parts
            ]
            module = ShardedEmbeddings(plan, PARAMS, device)
            for _ in range(PARAMS.warmup_steps):
                _step(module, ids)
            gc.collect()
            with torch.profiler.record_function("the step"):
                _step(module, ids)
        return _alive_at_peak(profile.profiler.kineto_results.experimental_event_tree())

    return measure


def _step(module: Any, ids: Any) -> None:
    """Forward and backward as in training: nothing but the outputs lives until the backward pass."""
    import torch

    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import _rows

    outputs = [collection(keyed) for collection, keyed in zip(module.collections, ids.keyed(), strict=True)]
    rows = [each for output in outputs for each in _rows(output.wait())]
    del outputs
    torch.autograd.backward(rows, [torch.ones_like(each) for each in rows])
    for optimizer in module.dense_optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _alive_at_peak(roots: list[Any]) -> list[tuple[int, str]]:
    """Bytes and operator of every tensor that is alive at the peak within "the step"."""
    events, span = [], (0, 0)
    waiting = [(root, "") for root in roots]
    while waiting:
        event, parents = waiting.pop()
        if event.name == "the step":
            span = event.start_time_ns, event.end_time_ns
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            events.append((event.start_time_ns, fields.ptr, fields.alloc_size, parents))
        waiting += [(child, f"{parents} > {event.name}") for child in event.children]
    alive: dict[int, tuple[int, str]] = {}
    total, best, found = 0, 0, []
    for at, address, size, where in sorted(events):
        total -= alive.pop(address, (0, ""))[0]
        if size > 0:
            alive[address] = size, where
            total += size
        if span[0] <= at <= span[1] and total > best:
            best, found = total, list(alive.values())
    return found
