"""Audit: every collective of TorchRec's steps against the formulas of this project, to the byte.

Needs the extra `torchrec`. It runs steps on 2 to 16 virtual ranks with hosts of 2 to 8 ranks, in about ten minutes on 2
cores and 6 GiB, and prints a table of the plans with their collectives, bytes and differences:

    python benchmarks/virtual/audit_collectives.py

The batches are made such that every rank sends exactly its share of the ids to every shard. Compared per rank are

`lab`        number, kind and ranks of collectives and the bytes to every rank, of the phases in `lab/step.py`
`reductions` kind, ranks and bytes of the reductions that `search/parts.py` prices
`volumes`    the bytes of `search/volumes.py` by kind (ids, outputs, reductions), inside hosts and between them
`work`       bag lengths, ids, weights and returned floats of `tables/step_work.py`
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import neuroshard_pipeline as ns
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.phases import AllToAll, Symmetric
from neuroshard_pipeline.lab.step import step_params, step_phases
from neuroshard_pipeline.lab.step_groups import Job, grouped
from neuroshard_pipeline.search.parts import reductions
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.volumes import plan_volumes
from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, group_of, rank_work
from neuroshard_pipeline.tables.table import Shard, whole
from neuroshard_pipeline.torchrec_bridge.ranks import rank_team
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.truth import steps
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective, StepLog

LAYOUTS = ((2, None), (4, 2), (8, 2), (8, 4), (16, 4), (16, 8))  # ranks, ranks per host
PARAMS = StepParams(
    backend="gloo",
    threads=1,
    timeout_s=600,
    learning_rate=0.01,
    num_batches=1,
    rounds=1,
    warmup_steps=3,  # DistributedDataParallel arranges its buckets in the first steps
    steps_per_round=1,
    most_plans_held=1,
    seed=0,
)
_LOCAL_BATCH = 16
_NUMBERS_BYTES = 8
_REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather")


def task_of(world_size: int, per_host: int | None, precision: str = "fp32") -> ns.ShardingTask:
    """Tables of every kind. A bag has an id in every block of rows, and the bags of `uneven` have all its rows."""
    rows = 3 * world_size
    tables = [
        ns.Table("two_features", 4 * rows, 32, 2.0 * world_size, num_features=2),
        ns.Table("fp16", 2 * rows, 16, 1.0 * world_size, data_type="fp16"),
        ns.Table("uneven", 2 * world_size - 1, 8, 2.0 * world_size - 1),
        ns.Table("weighted", rows, 16, 1.0 * world_size, module="other", is_weighted=True),
        ns.Table("mean", rows, 24, 1.0 * world_size, module="means", pooling="mean"),
        ns.Table("sequence", rows, 16, 1.0 * world_size, pooling="none"),
        ns.Table("sequence_2", 2 * rows, 16, 2.0 * world_size, pooling="none", num_features=2),
    ]
    return ns.ShardingTask(
        tables, world_size, _LOCAL_BATCH * world_size, 2**30, local_world_size=per_host, comm_precision=precision
    )


def batch_of(task: ns.ShardingTask) -> Batch:
    """A batch whose ids are spread over the rows of every table as evenly as the formulas assume."""
    samples, found = task.batch_size, []
    for table in task.tables:
        count = round(table.pooling_factor)
        step = max(1, table.num_embeddings // task.world_size)
        of_bag = np.arange(count) * step
        if count == table.num_embeddings:
            of_bag = np.arange(count)
        ids = (of_bag + np.arange(samples)[:, None]) % table.num_embeddings
        found.append(TableIds(ids.reshape(-1), np.arange(samples + 1) * count))
    return Batch(np.zeros((samples, 13), np.float32), tuple(found), np.zeros(samples, np.float32))


def plans_of(task: ns.ShardingTask) -> Iterator[Plan]:
    """A plan for every sharding type, and one with several types in every module."""
    types = ["column_wise", "row_wise", "data_parallel"]
    if task.num_hosts > 1:
        types += ["table_row_wise", "grid_shard"]
    for sharding_type in types:
        yield _plan(task, sharding_type, [sharding_type] * len(task.tables))
    yield _plan(task, "mixed", list(itertools.islice(itertools.cycle(reversed(types)), len(task.tables))))


def _plan(task: ns.ShardingTask, name: str, types: Sequence[str]) -> Plan:
    placed = []
    for at, (table, sharding_type) in enumerate(zip(task.tables, types, strict=True)):
        placed += list(_placed(table, sharding_type, at, task))
    shards, ranks = zip(*placed, strict=True)
    name = f"{name}, {task.comm_precision}"
    return Plan(task, shards, ranks, name, compute_device="cpu")


def _placed(table: ns.Table, sharding_type: str, at: int, task: ns.ShardingTask) -> Iterator[tuple[Shard, int]]:
    world, local = task.world_size, task.ranks_per_host
    if sharding_type == "data_parallel" and table.pooling != "none":
        yield from ((whole(table, "data_parallel"), rank) for rank in range(world))
    elif sharding_type == "row_wise" and table.pooling != "mean":
        yield from zip(row_shards(table, "row_wise", world), range(world), strict=True)
    elif sharding_type in ("table_row_wise", "grid_shard") and table.pooling == "sum":
        pieces = 2 if sharding_type == "grid_shard" else 1
        width = table.embedding_dim // pieces
        for piece in range(pieces):
            first = local * ((at + piece) % task.num_hosts)
            shards = row_shards(table, sharding_type, local, piece * width, width)
            yield from zip(shards, range(first, first + local), strict=True)
    else:
        half = table.embedding_dim // 2
        yield Shard(table, 0, half), at % world
        yield Shard(table, half, half), (at + 1) % world


@dataclass(frozen=True)
class Logged:
    """The collectives of one step, by rank: (whether it belongs to the input dist, the collective)."""

    of_ranks: tuple[tuple[tuple[bool, Collective], ...], ...]

    @classmethod
    def of(cls, logs: Sequence[StepLog]) -> Logged:
        """Gather them; the input dist ends with the second mark."""
        found = []
        for log in logs:
            end = next(at for at, event in enumerate(log.events) if event.kind == "mark" and event.number == 1)
            first = {event.number for event in log.events[:end] if event.kind == "start"}
            found.append(tuple((number in first, each) for number, each in enumerate(log.collectives)))
        return cls(tuple(found))

    def exchanges(self, rank: int, world_size: int) -> Iterator[tuple[bool, np.ndarray]]:
        """Bytes to every rank (W,) of the rank's all-to-alls, and whether they belong to the input dist."""
        for is_first, each in self.of_ranks[rank]:
            if each.kind == "alltoall":
                sent = np.zeros(world_size)
                sent[list(each.ranks)] = each.sent_bytes
                yield is_first, sent

    def others(self, rank: int) -> list[Collective]:
        """The rank's other collectives. TorchRec also reduces nothing, on hosts without tables of a group."""
        return [each for _, each in self.of_ranks[rank] if each.kind != "alltoall" and each.sent_bytes[0]]


def _is_splits(is_first: bool, sent: np.ndarray) -> bool:
    """Whether an all-to-all announces sizes: 3 numbers of 8 bytes for every rank, or 4 with weights."""
    return is_first and sent.max() in (3 * _NUMBERS_BYTES, 4 * _NUMBERS_BYTES) and np.ptp(sent) == 0


def differences(plan: Plan, logged: Logged) -> dict[str, list[str]]:
    """What differs, by what is compared (see the top of this file)."""
    return {
        "lab": list(_lab(plan, logged)),
        "reductions": list(_reductions(plan, logged)),
        "volumes": list(_volumes(plan, logged)),
        "work": list(_work(plan, logged)),
    }


def _lab(plan: Plan, logged: Logged) -> Iterator[str]:
    task, world = plan.task, plan.task.world_size
    network = network_preset("h100-ib400", task.ranks_per_host)
    job = Job(task, modelled_device("h100"), network, step_params())
    phases = step_phases(grouped(plan.shards, plan.ranks, task), job)
    for rank in range(world):
        expected: Counter[Any] = Counter()
        for phase in phases:
            if isinstance(phase, AllToAll):
                expected[("alltoall", *_sent(phase.message_bytes[rank], rank))] += 1
            elif isinstance(phase, Symmetric) and phase.us[rank] > 0:
                expected[("us", round(float(phase.us[rank]), 6))] += 1
        found: Counter[Any] = Counter()
        for is_first, sent in logged.exchanges(rank, world):
            if _is_splits(is_first, sent):
                us = collective_us("alltoall", sent.sum(), world, task.num_hosts, network)
                found[("us", round(float(us), 6))] += 1
            else:
                found[("alltoall", *_sent(sent, rank))] += 1
        for each in logged.others(rank):
            hosts = len({other // task.ranks_per_host for other in each.ranks})
            us = collective_us(each.kind, each.sent_bytes[0], len(each.ranks), hosts, network)
            found[("us", round(float(us), 6))] += 1
        for name, more in (("only in the lab", expected - found), ("only in TorchRec", found - expected)):
            for what, times in more.items():
                if what[0] == "us" or any(what[1:]):
                    yield f"rank {rank}, {name}, {times} x {what}"


def _sent(sent: np.ndarray, rank: int) -> tuple[float, ...]:
    return tuple(0.0 if other == rank else round(float(each), 3) for other, each in enumerate(sent))


def _reductions(plan: Plan, logged: Logged) -> Iterator[str]:
    priced = reductions(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
    for rank in range(plan.task.world_size):
        expected = Counter((each.collective, round(float(each.size_bytes[rank]), 3), each.num_ranks) for each in priced)
        found = Counter((each.kind, float(each.sent_bytes[0]), len(each.ranks)) for each in logged.others(rank))
        expected = Counter({key: times for key, times in expected.items() if key[1]})
        if expected != found:
            yield f"rank {rank}: priced {dict(expected - found)}, TorchRec {dict(found - expected)}"


def _volumes(plan: Plan, logged: Logged) -> Iterator[str]:
    task, world = plan.task, plan.task.world_size
    expected = plan_volumes(task, plan.shards, plan.ranks)
    host = np.arange(world) // task.ranks_per_host
    for rank in range(world):
        found = {(place, kind): 0.0 for place in ("inside", "across") for kind in ("ids", "outputs", "reductions")}
        for is_first, sent in logged.exchanges(rank, world):
            if not _is_splits(is_first, sent):
                sent[rank] = 0.0
                kind = "ids" if is_first else "outputs"
                found["inside", kind] += sent[host == host[rank]].sum()
                found["across", kind] += sent[host != host[rank]].sum()
        for each in logged.others(rank):
            share = (2 if each.kind == "all_reduce" else 1) * each.sent_bytes[0] / len(each.ranks)
            hosts = len({host[other] for other in each.ranks})
            found["inside", "reductions"] += share * (len(each.ranks) - hosts)
            found["across", "reductions"] += share * (hosts - 1)
        for (place, kind), num_bytes in found.items():
            ours = float(getattr(expected, place)[kind][rank])
            if abs(ours - num_bytes) > 1e-6 * max(num_bytes, 1):
                yield f"rank {rank}, {kind} {place}: {ours:.1f} bytes, TorchRec {num_bytes:.1f}"


def _work(plan: Plan, logged: Logged) -> Iterator[str]:
    task, world = plan.task, plan.task.world_size
    work = dict(zip(QUANTITIES, 1e6 * rank_work(task, plan.shards, plan.ranks).T, strict=True))
    messages = np.zeros((world, world))
    for rank in range(world):
        for is_first, sent in logged.exchanges(rank, world):
            if is_first and not _is_splits(is_first, sent):
                messages[rank] += sent
    for name, found, prefix in (("received", messages.sum(axis=0), ""), ("sent", messages.sum(axis=1), "sent_")):
        ours = 4 * work[f"{prefix}bags"] + 8 * work[f"{prefix}ids"] + 4 * work[f"{prefix}weights"]
        for rank in np.flatnonzero(np.abs(ours - found) > 1e-6 * np.maximum(found, 1)).tolist():
            yield f"rank {rank}, ids {name}: {ours[rank]:.1f} bytes, TorchRec {found[rank]:.1f}"
    splits = {sum(_is_splits(*each) for each in logged.exchanges(rank, world)) for rank in range(world)}
    groups = {group_of(shard) for shard in plan.shards if shard.sharding_type != "data_parallel"}
    if splits != {len(groups)}:
        yield f"{len(groups)} groups exchange ids, TorchRec announces sizes {splits} times"


def logged_plans(
    world_size: int, per_host: int | None, precisions: Sequence[str] = ("fp32", "fp16")
) -> Iterator[tuple[Plan, Logged]]:
    """Every plan on this layout, and the collectives of its step."""
    arguments = (world_size, per_host, PARAMS, True, steps.load_embedding_steps)
    with rank_team(world_size, steps.set_up_rank, arguments, PARAMS) as team:
        for precision in precisions:
            task = task_of(world_size, per_host, precision)
            for plan in plans_of(task):
                answers = team.ask(steps.Group((plan,), (batch_of(task),)), PARAMS.timeout_s)
                yield plan, Logged.of([own[-1][2] for own in answers])


def audited(logged: Iterable[tuple[Plan, Logged]]) -> pd.DataFrame:
    """One row per plan: collectives and bytes of all ranks, and the differences."""
    rows = []
    for plan, of_plan in logged:
        found = differences(plan, of_plan)
        collectives = [each for of_rank in of_plan.of_ranks for _, each in of_rank]
        rows.append(
            {
                "ranks": plan.task.world_size,
                "per host": plan.task.ranks_per_host,
                "plan": plan.sharder,
                "collectives": len(collectives),
                "bytes": sum(sum(each.sent_bytes) for each in collectives),
                **{name: len(lines) for name, lines in found.items()},
                "first": next((f"{name}: {lines[0]}" for name, lines in found.items() if lines), ""),
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    table = audited(itertools.chain.from_iterable(logged_plans(*layout) for layout in LAYOUTS))
    print(table.to_string(index=False))
    differing = table[table["first"] != ""]
    print(f"{len(table)} plans, {table['collectives'].sum()} collectives; {len(differing)} plans differ")
