"""Memory at the peak of a step: small plans by hand, and published peaks."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard_pipeline.evaluation.peak_memory import peak_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

TABLE = Table("a", 1000, 8, 2.0)
B, LOCAL = 200, 100  # samples of both ranks, and of one
OUT = 4 * 8 * LOCAL  # bytes of one rank's outputs


def plan(*placed, tables=(TABLE,), **fields) -> Plan:
    task = ShardingTask(tables, 2, B, 2**40, optimizer="sgd", **fields)
    return Plan(task, tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed), "x", compute_device="cpu")


def test_a_whole_table_by_hand():
    found = peak_memory(plan((whole(TABLE), 0)), dense_bytes=7)
    assert found.tables.tolist() == [32_000, 0]
    assert found.outputs.tolist() == [OUT] * 2
    # The gradient, a copy per rank, and what is sent (rank 1) or received from both ranks (rank 0).
    assert found.gradients.tolist() == [2 * OUT + 2 * OUT, 3 * OUT]
    # Both ranks hold 2 ids and a length of their samples; rank 0 also what it received, with offsets.
    assert found.ids.tolist() == [20 * LOCAL + (16 + 12) * B, 20 * LOCAL]
    assert found.allocated.tolist() == (found.tables + found.ids + found.outputs + found.gradients + 7).tolist()
    assert found.counted.tolist() == [32_000 + (16 + 12) * B + 2 * OUT, 0]
    assert found.storage_reservation(1e6) == np.max(found.reserved - found.counted) / 1e6


def test_a_pipelining_trainer_also_holds_the_next_batches():
    one, more = (peak_memory(plan((whole(TABLE), 0), pipelines_input_dist=of)).ids for of in (False, True))
    assert (more - one).tolist() == [(16 + 12) * B + 2 * 20 * LOCAL, 2 * 20 * LOCAL]


def test_cut_tables_are_reordered_and_groups_of_one_module_keep_copies_of_ids_and_gradients():
    halves = peak_memory(plan((Shard(TABLE, 0, 4), 0), (Shard(TABLE, 4, 4), 1)))
    assert halves.gradients.tolist() == [OUT + 2 * OUT + OUT] * 2
    other = Table("b", 1000, 8, 2.0)
    rows = zip(row_shards(other, "row_wise", 2), range(2), strict=True)
    both = peak_memory(plan((whole(TABLE), 0), *rows, tables=(TABLE, other)))
    alone = [
        peak_memory(plan((whole(TABLE), 0))),
        peak_memory(plan(*zip(row_shards(TABLE, "row_wise", 2), (0, 1), strict=True))),
    ]
    assert both.gradients.tolist() == (sum(of.gradients for of in alone) + 2 * OUT).tolist()
    assert both.ids.tolist() == (sum(of.ids for of in alone) + 2 * 20 * LOCAL).tolist()


def test_row_shards_gather_all_gradients_and_replicas_hold_theirs_three_times():
    rows = zip(row_shards(TABLE, "row_wise", 2), range(2), strict=True)
    assert peak_memory(plan(*rows)).gradients.tolist() == [OUT + 2 * OUT] * 2
    replicas = peak_memory(plan(*((whole(TABLE, "data_parallel"), rank) for rank in range(2))))
    assert replicas.tables.tolist() == [3 * 32_000] * 2
    assert replicas.gradients.tolist() == [OUT] * 2


@pytest.mark.parametrize(
    ("tables", "pooling", "pipelined", "allocated", "reserved"),
    [
        ((20, 20), 10, False, 11.84, 17.32),  # torchrec#3580, base_pipeline_light
        ((20, 20), 10, True, 12.47, 18.24),  # torchrec#3580, sparse_data_dist_light
        ((90, 80), 30, True, 43.30, 67),  # torchrec#4066, sparse_data_dist_base; without skip_regroup 49.06
    ],
)
def test_published_peaks(tables, pooling, pipelined, allocated, reserved):
    """TorchRec's benchmark of trainers: 2 ranks, 32,768 samples each; it prints 1,000 MiB as GB.

    The largest table alone is cut by columns, so that it has a group of its own, here a module.
    """
    unweighted, weighted = (
        [Table(f"{name}_{at}", 100_000, 256, pooling, is_weighted=name == "w", module=name) for at in range(count)]
        for name, count in zip("uw", tables, strict=True)
    )
    half, large = Table("h", 100_000, 512, pooling, data_type="fp16"), Table("l", 10**6, 2048, pooling, module="l")
    alone = [*unweighted, *weighted, half]
    shards = [*map(whole, alone), Shard(large, 0, 1024), Shard(large, 1024, 1024)]
    task = ShardingTask([*alone, large], 2, 65536, 2**40, pipelines_input_dist=pipelined)
    ranks = [*(at % 2 for at in range(len(alone))), 0, 1]
    found = peak_memory(Plan(task, tuple(shards), tuple(ranks), "x", compute_device="cuda"))
    gb = 1000 * 2**20
    assert found.allocated.max() / gb == pytest.approx(allocated, rel=0.1)
    assert found.reserved.max() / gb == pytest.approx(reserved, rel=0.1)
