"""Bytes per step against messages that are counted one by one for drawn ids, and against hand counts."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.search.volumes import BAGS_OF_COLD_TIERS, plan_volumes
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

BATCH, WORLD, LOCAL = 1024, 8, 4
SEQUENCES = [Table(f"s{number}", 20_000, 16, 30.0, pooling="none") for number in range(3)]
POOLED = [
    Table("whole", 5000, 16, 4.0),
    Table("halves", 5000, 16, 4.0, num_features=2),
    Table("rows", 5000, 16, 4.0, is_weighted=True),
    Table("host", 5000, 16, 4.0),
    Table("grid", 5000, 16, 4.0),
    Table("copied", 100, 16, 4.0),
]


def task_of(tables, **fields):
    return ShardingTask(tables, WORLD, BATCH, 2**40, local_world_size=LOCAL, **fields)


def placed_pooled():
    whole_table, halves, rows, host, grid, copied = POOLED
    return [
        (whole(whole_table), 5),
        (Shard(halves, 0, 4), 1),
        (Shard(halves, 4, 12), 6),
        *zip(row_shards(rows, "row_wise", WORLD), range(WORLD), strict=True),
        *zip(row_shards(host, "table_row_wise", LOCAL), range(4, 8), strict=True),
        *zip(row_shards(grid, "grid_shard", LOCAL, 0, 8), range(4), strict=True),
        *zip(row_shards(grid, "grid_shard", LOCAL, 8, 8), range(4, 8), strict=True),
        *((whole(copied, "data_parallel"), rank) for rank in range(WORLD)),
    ]


def placed_sequences(tables):
    """Shards with ranks: the first table in two column shards, hot and host tiers as copies, all else row-wise."""
    placed = []
    for table in tables:
        kind = None if table.tier is None else table.tier.kind
        if kind == "hot":
            placed += [(whole(table, "data_parallel"), rank) for rank in range(WORLD)]
        elif kind == "host":
            placed += zip(row_shards(table, "host_row_wise", LOCAL) * 2, range(WORLD), strict=True)
        elif table is tables[0]:
            placed += [(Shard(table, 0, 4), 2), (Shard(table, 4, 12), 7)]
        else:
            placed += zip(row_shards(table, "row_wise", WORLD), range(WORLD), strict=True)
    return placed


def counted(task, placed, seed=0):
    """Bytes that every rank sends in all-to-alls, by kind and by whether they cross hosts, added up for drawn ids."""
    found = defaultdict(lambda: np.zeros(WORLD))
    samples = BATCH // WORLD
    floats = {"fp32": 4, "fp16": 2}[task.comm_precision]

    def send(kind, source, target, size):
        if source != target:
            found[kind, "inside" if source // LOCAL == target // LOCAL else "across"][source] += size

    batches = {table.name: draw_ids(table, BATCH, seed) for table in task.tables}
    for shard, owner in placed:
        table, ids = shard.table, batches[shard.table.name]
        for source in range(WORLD):
            if shard.sharding_type == "data_parallel":
                continue
            if shard.sharding_type == "host_row_wise" and source // LOCAL != owner // LOCAL:
                continue
            own = ids.indices[ids.offsets[source * samples] : ids.offsets[(source + 1) * samples]]
            own = own[(own >= shard.row_offset) & (own < shard.row_offset + shard.num_rows)]
            if task.index_dedup and table.pooling == "none":
                own = np.unique(own)
            bags = samples * table.num_features
            if any(other.tier is not None and other.module == table.module for other in task.tables):
                bags = 0 if table.tier is not None and table.tier.kind == "host" else BAGS_OF_COLD_TIERS
            send("ids", source, owner, 4 * bags + len(own) * (12 if table.is_weighted else 8))
            if table.pooling == "none":
                rows = len(own)
            elif shard.sharding_type == "column_wise":
                rows = samples * table.num_features
            else:
                continue  # ranks add up their partial sums by reductions, which are no all-to-alls
            send("outputs", owner, source, floats * rows * shard.embedding_dim)
            send("outputs", source, owner, floats * rows * shard.embedding_dim)
        if shard.sharding_type in ("table_row_wise", "grid_shard") and owner % LOCAL == 0:
            for place in range(LOCAL):  # each rank sends its counterparts on other hosts the sums for their samples
                source = owner + place
                for target in range(place, WORLD, LOCAL):
                    if target // LOCAL != source // LOCAL:
                        size = floats * samples * table.num_features * shard.embedding_dim
                        send("outputs", source, target, size)
                        send("outputs", target, source, size)
    return found


def assert_agree(task, placed, rel):
    """The sum over all ranks agrees within `rel`, and each rank within 10 %, because its number of ids varies."""
    volumes = plan_volumes(task, *zip(*placed, strict=True))
    draws = [counted(task, placed, seed) for seed in range(8)]
    expected = {key: np.mean([draw[key] for draw in draws], axis=0) for key in draws[0]}
    for (kind, side), sizes in expected.items():
        assert getattr(volumes, side)[kind].sum() == pytest.approx(sizes.sum(), rel=rel), (kind, side)
        assert getattr(volumes, side)[kind] == pytest.approx(sizes, rel=0.1), (kind, side)
    for side in ("inside", "across"):
        for kind in ("ids", "outputs"):
            assert ((kind, side) in expected) == getattr(volumes, side)[kind].any()
    return volumes


def total(by_kind) -> float:
    """Bytes of all kinds and ranks."""
    return float(sum(of.sum() for of in by_kind.values()))


@pytest.mark.parametrize("comm_precision", ["fp32", "fp16"])
def test_pooled_tables_of_every_type(comm_precision):
    assert_agree(task_of(POOLED, comm_precision=comm_precision), placed_pooled(), rel=0.01)


@pytest.mark.parametrize("comm_precision", ["fp32", "fp16"])
@pytest.mark.parametrize("index_dedup", [False, True])
def test_sequence_tables(comm_precision, index_dedup):
    task = task_of(SEQUENCES, comm_precision=comm_precision, index_dedup=index_dedup)
    assert_agree(task, placed_sequences(task.tables), rel=0.03)


@pytest.mark.parametrize("index_dedup", [False, True])
def test_tiers(index_dedup):
    task = task_of(SEQUENCES, tiers=True, index_dedup=index_dedup)
    tiers = tiered_task(task, {"s1": Cuts(100, 2000), "s2": Cuts(0, 500)})
    volumes = assert_agree(tiers, placed_sequences(tiers.tables), rel=0.03)
    flat = plan_volumes(task, *zip(*placed_sequences(task.tables), strict=True))
    assert volumes.across["outputs"].sum() < 0.8 * flat.across["outputs"].sum()
    gradients = 100 * 16 * 4
    host_gradients = (2000 + 500) // 4 * 16 * 4  # bytes on one rank; it sends one half, and the sums of the other half
    # One host sends its sums of the hot gradients to the other host and gets the totals back. Inside each of the two
    # hosts, three ranks send their gradients to the fourth rank and get the totals back.
    assert volumes.across["reductions"].sum() == pytest.approx(2 * gradients + 8 * host_gradients)
    assert volumes.inside["reductions"].sum() == pytest.approx(2 * 2 * 3 * gradients)


def test_reductions_of_row_shards_by_hand():
    rows, host = POOLED[2], POOLED[3]
    task = task_of([rows, host])
    placed = [
        *zip(row_shards(rows, "row_wise", WORLD), range(WORLD), strict=True),
        *zip(row_shards(host, "table_row_wise", LOCAL), range(4, 8), strict=True),
    ]
    volumes = plan_volumes(task, *zip(*placed, strict=True))
    output = 4 * BATCH * 16  # bytes of all samples
    # Two collectives per table: reduce_scatter and all_gather. Each sends (2 - 1) * output between hosts and
    # (8 - 2) * output inside them for the 8 ranks of `rows`, and (4 - 1) * output for the 4 ranks of `host`.
    assert volumes.across["reductions"].sum() == pytest.approx(2 * output)
    assert volumes.inside["reductions"].sum() == pytest.approx(2 * 6 * output + 2 * 3 * output)


def test_one_host_sends_nothing_across():
    task = replace(task_of(SEQUENCES), local_world_size=None)
    placed = placed_sequences(task.tables)
    alone = plan_volumes(task, *zip(*placed, strict=True))
    assert total(alone.across) == 0
    split = plan_volumes(task_of(SEQUENCES), *zip(*placed, strict=True))
    assert total(alone.inside) == pytest.approx(total(split.inside) + total(split.across))
