"""The work of a step, against counts by hand: 4 ranks, 400 samples, so that a rank has 100 samples of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, rank_work
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

PLAIN, OTHER = Table("plain", 1000, 16, 2.0), Table("other", 1000, 8, 3.0)


def work_of(*placed: tuple[Shard, int], **task) -> dict[str, list[float]]:
    """Every quantity of all ranks; those that `QUANTITIES` has in millions are converted to single units."""
    tables = tuple({shard.table.name: shard.table for shard, _ in placed}.values())
    found = rank_work(ShardingTask(tables, 4, 400, 2**40, **task), *zip(*placed, strict=True))
    counts = ("modules", "groups", "features", "replicas", "kernels")
    return {name: (found[:, at] * (1 if name in counts else 1e6)).tolist() for at, name in enumerate(QUANTITIES)}


def copies(table: Table) -> list[tuple[Shard, int]]:
    return [(whole(table, "data_parallel"), rank) for rank in range(4)]


def test_outputs_of_one_module_are_joined_if_its_tables_have_several_types():
    own_samples = [100 * (16 + 8)] * 4
    assert work_of((whole(PLAIN), 0), (whole(OTHER), 1))["joined"] == [0] * 4
    assert work_of((whole(PLAIN), 0), *copies(OTHER))["joined"] == pytest.approx(own_samples)
    by_rows = zip(row_shards(OTHER, "row_wise", 4), range(4), strict=True)
    found = work_of((whole(PLAIN), 0), *by_rows)
    assert found["joined"] == pytest.approx(own_samples)
    assert (found["modules"], found["groups"]) == ([1] * 4, [2] * 4)
    assert found["bucketized"] == pytest.approx([100 * 3.0] * 4)  # ids of the rank's samples for OTHER


@pytest.mark.parametrize("change", [{"module": "b"}, {"is_weighted": True}, {"pooling": "none"}])
def test_outputs_of_different_modules_are_not_joined(change):
    found = work_of((whole(PLAIN), 0), *zip(row_shards(replace(OTHER, **change), "row_wise", 4), range(4), strict=True))
    assert found["joined"] == [0] * 4
    assert found["modules"] == found["groups"] == [2] * 4


def test_a_rank_with_several_kernels_of_a_group_copies_their_outputs_to_one_place():
    half, mean = replace(OTHER, name="half", data_type="fp16"), replace(OTHER, name="mean", pooling="mean")
    weighted = replace(half, name="weighted", is_weighted=True)  # in a module of its own
    found = work_of((whole(PLAIN), 0), (whole(half), 0), (whole(mean), 0), (whole(OTHER), 1), (whole(weighted), 1))
    assert found["kernels"] == pytest.approx([2, 0, 0, 0])
    assert found["gathered"] == pytest.approx([400 * (16 + 8 + 8), 0, 0, 0])
    found = work_of(*copies(PLAIN), *copies(half), (whole(mean), 3))
    assert found["kernels"] == pytest.approx([1] * 4)
    assert found["gathered"] == pytest.approx([100 * (16 + 8)] * 4)


def test_weights_travel_with_their_ids_and_rows_are_looked_up_with_them():
    found = work_of((whole(replace(PLAIN, is_weighted=True)), 2), (whole(OTHER), 1))
    assert found["weights"] == pytest.approx([0, 0, 800, 0])
    assert found["sent_weights"] == pytest.approx([200] * 4)
    assert found["weighted"] == pytest.approx([0, 0, 800 * 16, 0])
    assert work_of(*copies(replace(PLAIN, is_weighted=True)))["weighted"] == pytest.approx([200 * 16] * 4)
    assert not any(work_of(*copies(replace(PLAIN, is_weighted=True)))["weights"])


def test_means_are_outputs_of_tables_with_mean_pooling():
    found = work_of((whole(replace(PLAIN, pooling="mean")), 2), (whole(OTHER), 2))
    assert found["averaged"] == pytest.approx([0, 0, 400 * 16, 0])
    assert found["pooled"] == pytest.approx([0, 0, 400 * (16 + 8), 0])


def test_half_precision_converts_what_is_sent_and_what_is_returned():
    placed = [(whole(PLAIN), 2), *copies(OTHER)]
    assert work_of(*placed)["converted"] == [0] * 4
    own, returned = np.array([0, 0, 400 * 16, 0]), 100 * 16
    assert work_of(*placed, comm_precision="bf16")["converted"] == pytest.approx(own + returned)


def test_sums_of_a_host_are_converted_again_between_hosts():
    """Ranks 2 and 3 pool all 400 samples. reduce_scatter leaves each rank 200 sums, in fp32 until the all-to-all."""
    placed = list(zip(row_shards(PLAIN, "table_row_wise", 2), (2, 3), strict=True))
    found = work_of(*placed, comm_precision="fp16", local_world_size=2)["converted"]
    own, returned = np.array([0, 0, 400 + 2 * 200, 400 + 2 * 200]) * 16, 100 * 16
    assert found == pytest.approx(own + returned)
