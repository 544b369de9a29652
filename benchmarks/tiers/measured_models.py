"""Cost models of the ranks that `bench_tiers.py` measures, from collectives and kernels timed on these ranks.

No trained cost model describes two emulated hosts. All ranks therefore time, at the same time:

- all-to-alls of several sizes among all ranks and among the ranks of a host, and reductions among all ranks;
- FBGEMM's lookup of a sequence table, the dense optimizer, the copy of rows and the search for repeated ids.

A collective costs what the curve through its sizes says; the size of an all-to-all is that of the rank with most rows.
An all-to-all includes a first copy, which puts exchanged rows into the order of their ids. A second copy joins the rows
of all tiers; rows of hot tiers are not exchanged and need only this one.
The other work is proportional to its floats or ids. Ids are priced like rows of the same number of bytes. Besides, each
group of tables waits for two all-to-alls, one of lengths and one of ids. Collectives in which several sets of ranks
share the wire are priced as one collective of all ranks (`search.parts.GroupReduction.priced_as`).

Shapes: W ranks, K sizes, S shards, `...` any number of plans.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tiers_on_gloo import PARAMS, on_ranks, read, write

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.ranks import join_ranks

#: Sizes of the timed collectives as shares of the all-to-all of a task without tiers.
_SHARES = (1 / 1024, 1 / 128, 1 / 32, 1 / 8, 1 / 2, 1.0)
_REPEATS = 5
#: Number of floats of the timed kernels, and of ids that are searched for repetitions; columns of the kernels' table.
_FLOATS, _WIDTH = 2**20, 64
_MILLION, _ID_BYTES, _LENGTH_BYTES = 1e6, 8, 4


@dataclass(frozen=True)
class MeasuredComm:
    """All-to-alls, and the copies that put the rows that were returned to a rank into the order of its ids.

    Attributes:
        curves: by number of ranks.
        spread: mean relative deviation of repetitions from their median.
        copied_ms: ms per million floats that a rank gets back, forward and backward together. On average, a rank gets
            back as many floats as it sends.
    """

    curves: Mapping[int, Curve]
    spread: float
    copied_ms: float

    def backward_ms(self, dim_sums: FloatArray, batch_size: int) -> FloatArray:
        """Backward ms (..., W): of an all-to-all in which all ranks have the largest buffer, and half of the copies."""
        dims = np.asarray(dim_sums, dtype=float)
        largest = 4.0 * batch_size * dims.max(axis=-1, keepdims=True)
        copies = self.copied_ms / 2 * batch_size * dims.mean(axis=-1, keepdims=True) / _MILLION
        return np.broadcast_to(self.curves[dims.shape[-1]].at(largest) + copies, dims.shape)

    def forward_ms(self, dim_sums: FloatArray, start_skew_ms: FloatArray, batch_size: int) -> FloatArray:
        """Forward ms (..., W): a rank waits for the last one."""
        skew = np.asarray(start_skew_ms, dtype=float)
        return self.backward_ms(dim_sums, batch_size) + skew.max(-1, keepdims=True) - skew

    def backward_interval_ms(self, dim_sums: FloatArray, batch_size: int) -> FloatArray:
        """(..., W, 2) from the spread of repetitions."""
        return _interval(self.backward_ms(dim_sums, batch_size), self.spread)

    def forward_interval_ms(self, dim_sums: FloatArray, start_skew_ms: FloatArray, batch_size: int) -> FloatArray:
        """(..., W, 2) from the spread of repetitions."""
        return _interval(self.forward_ms(dim_sums, start_skew_ms, batch_size), self.spread)


@dataclass(frozen=True)
class MeasuredLookups:
    """Lookups: ms forward and backward per million floats of looked-up rows, (2,), and the spread of all kernels."""

    per_unit: FloatArray
    spread: float

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> FloatArray:  # noqa: ARG002
        """Millions of floats of looked-up rows, (S, 1)."""
        return np.array([[batch_size * s.table.pooling_factor * s.embedding_dim / _MILLION] for s in shards])

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:  # noqa: ARG002
        """Forward and backward ms (..., 2)."""
        return np.asarray(sums) * self.per_unit

    def interval_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """(..., 2) from the spread of repetitions."""
        return _interval(self.costs_from_sums(sums, batch_size).sum(axis=-1), self.spread)


@dataclass(frozen=True)
class MeasuredModels:
    """Models of the measured ranks."""

    compute: MeasuredLookups
    comm: MeasuredComm
    step: StepCostModel

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:  # noqa: ARG002
        """Where the costs come from."""
        return ("costs: collectives and kernels that the ranks of the benchmark timed just before",)


def _interval(cost_ms: FloatArray, spread: float) -> FloatArray:
    return np.stack([cost_ms / (1.0 + spread), cost_ms * (1.0 + spread)], axis=-1)


def measured_models(task: ShardingTask, mbit: float | None) -> MeasuredModels:
    """Time collectives and kernels on the ranks of a task, on one host or on two with a wire of `mbit` Mbit/s."""
    floats = sum(table.pooling_factor * table.embedding_dim for table in task.tables)
    largest = 4.0 * task.batch_size * floats / task.world_size
    sizes = [max(round(share * largest / 4 / task.world_size), 1) * 4 * task.world_size for share in _SHARES]
    found = on_ranks(__file__, (sizes, task), task, mbit)
    # A repetition ends when the slowest rank is done.
    slowest = {name: np.max([of_rank[name] for of_rank in found], axis=0) for name in found[0]}  # (repeats, K)
    medians = {name: np.median(times, axis=0) for name, times in slowest.items()}
    spread = {name: float(np.mean(np.abs(times / medians[name] - 1.0))) for name, times in slowest.items()}
    sent = np.array(sizes, dtype=float)
    curves = {name: Curve(sent, np.maximum.accumulate(of)) for name, of in medians.items() if name != "kernels"}
    units = medians["kernels"] / (_FLOATS / _MILLION)
    lookup, copied, dense, searched = units[:2], units[2], units[3], units[4]
    comm = {task.ranks_per_host: curves["inside"], task.world_size: curves["world"]}
    prices = {ranks: prices_of(curve, copied, dense, searched) for ranks, curve in comm.items()}
    group = Group(task.world_size, task.num_hosts)
    errors = {name: spread[name] for name in REDUCTIONS}
    reductions = ReductionCosts({name: {group: curves[name]} for name in REDUCTIONS}, errors, errors)
    return MeasuredModels(
        MeasuredLookups(lookup, spread["kernels"]),
        MeasuredComm(comm, spread["world"], float(copied)),
        StepCostModel(prices, reductions),
    )


def described(models: MeasuredModels) -> str:
    """The measured costs in one line."""
    rates = ", ".join(
        f"all-to-all of {ranks} ranks {curve.cost_ms[0]:.2g} ms + {_slope(curve) * _MILLION:.3g} ms/MB"
        for ranks, curve in models.comm.curves.items()
    )
    ((group, reduced),) = models.step.reductions.curves["all_reduce"].items()
    work = models.compute.per_unit
    return (
        f"measured: {rates}; all-reduce of {group.world_size} ranks {reduced.cost_ms[0]:.2g} ms + "
        f"{_slope(reduced) * _MILLION:.3g} ms/MB; lookup of 10^6 floats {work[0]:.2g} ms forward, "
        f"{work[1]:.2g} ms backward"
    )


def _slope(curve: Curve) -> float:
    """Ms per byte between the smallest and the largest size."""
    return float((curve.cost_ms[-1] - curve.cost_ms[0]) / (curve.size_bytes[-1] - curve.size_bytes[0]))


def prices_of(curve: Curve, copied: float, dense: float, searched: float) -> dict[str, dict[str, float]]:
    """Prices of a step (`cost_models.step`) from the `curve` of an all-to-all, and ms per million floats or ids."""
    per_byte = _slope(curve)
    sent = {"sent_ids": _ID_BYTES * per_byte * _MILLION, "sent_bags": _LENGTH_BYTES * per_byte * _MILLION}
    return {
        "input_dist": {"groups": 2.0 * float(curve.cost_ms[0]), "deduplicated": float(searched), **sent},
        "module": {"expanded": float(copied)},
        "dense": {"gradients": float(dense)},
    }


def run_rank(folder: Path, rank: int, world_size: int, per_host: int) -> None:
    """Time all collectives and kernels on this rank; store ms by name, (repeats, K sizes) or (repeats, 5 kernels)."""
    join_ranks(rank, world_size, PARAMS, str(folder / "store"), per_host)
    import torch.distributed as dist

    from neuroshard_pipeline.torchrec_bridge.tiered import rank_groups

    sizes, task = read(folder / "job")
    groups, kernels = rank_groups(per_host), _kernels(task)
    calls = {
        "world": [_exchange(size, groups.world) for size in sizes],
        "inside": [_exchange(size, groups.host) for size in sizes],
        **{name: [_reduction(name, size, world_size) for size in sizes] for name in REDUCTIONS},
        "kernels": kernels,
    }
    found = {name: [[_timed(call) for call in of] for _ in range(_REPEATS + 1)][1:] for name, of in calls.items()}
    write(folder / f"rank_{rank}", found)
    dist.barrier()
    dist.destroy_process_group()


def _timed(call: Callable[[], Any]) -> float:
    import torch.distributed as dist

    dist.barrier()
    start = time.perf_counter()
    call()
    return 1000.0 * (time.perf_counter() - start)


def _exchange(size_bytes: int, group: Any) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    floats = max(size_bytes // 4 // group.size(), 1) * group.size()
    sent, received = torch.zeros(floats), torch.zeros(floats)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _reduction(name: str, size_bytes: int, world_size: int) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    whole, part = torch.zeros(size_bytes // 4), torch.zeros(size_bytes // 4 // world_size)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
    }
    return calls[name]


def _kernels(task: ShardingTask) -> list[Callable[[], Any]]:
    """Lookup forward and backward, copy of rows with its backward pass, dense optimizer, search for repeated ids.

    The ids are those of a batch of the first table, cut off or repeated to the number that a kernel needs.
    """
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import OPTIMIZER_CLASSES

    table, number = task.tables[0], _FLOATS // _WIDTH
    drawn = torch.from_numpy(draw_ids(table, task.batch_size, 0).indices)
    ids, offsets = drawn[torch.arange(number) % len(drawn)], torch.arange(number + 1)
    fused = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}[task.optimizer]
    specification = (table.num_embeddings, _WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)
    lookup = SplitTableBatchedEmbeddingBagsCodegen(
        [specification], optimizer=fused, pooling_mode=PoolingMode.NONE, learning_rate=0.01
    )
    rows = torch.zeros(number, _WIDTH, requires_grad=True)
    order = torch.from_numpy(np.random.default_rng(0).permutation(number))
    gradient, looked_up = torch.ones(number, _WIDTH), []
    weights = torch.nn.Parameter(torch.zeros(number, _WIDTH))
    dense = OPTIMIZER_CLASSES[task.optimizer]([weights], lr=0.01)
    many_ids = drawn[torch.arange(_FLOATS) % len(drawn)]

    def update() -> None:
        weights.grad = torch.zeros_like(weights)
        dense.step()

    return [
        lambda: looked_up.append(lookup(ids, offsets)),
        lambda: looked_up.pop().backward(gradient),
        lambda: rows.index_select(0, order).backward(gradient),
        update,
        lambda: torch.unique(many_ids, return_inverse=True),
    ]


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
