"""What plans with tiers exchange and reduce, against hand counts (batch size B, W ranks)."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.parts import all_to_alls, reductions, step_parts
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import part_offsets_ms, predicted_cost, priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.shard_cache import shard_embeddings
from neuroshard_pipeline.search.spread import column_problem, joined, spread_of, spread_tables
from neuroshard_pipeline.tables.dedup import deduplicated, looked_up
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, rank_work
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.test_parts import stepping_models

BATCH = 32
ITEMS = Table("items", 1000, 16, 20.0, pooling="none")


def tiered(**fields):
    task = ShardingTask((ITEMS,), 4, BATCH, 2**40, local_world_size=2, tiers=True, **fields)
    return tiered_task(task, {"items": Cuts(10, 40)})


def placed_tiers(task):
    hot, host, cold = task.tables
    rows = row_shards(host, "host_row_wise", 2)
    return [
        *((whole(hot, "data_parallel"), rank) for rank in range(4)),
        *zip(rows + rows, range(4), strict=True),
        *zip(row_shards(cold, "row_wise", 4), range(4), strict=True),
    ]


def planned(**fields):
    task = tiered(**fields)
    shards, ranks = zip(*placed_tiers(task), strict=True)
    return Plan(task, shards, ranks, "by hand", memory=WEIGHTS_AND_OPTIMIZER)


@pytest.mark.parametrize("index_dedup", [False, True])
def test_volumes_of_the_all_to_alls(index_dedup):
    """A rank sends host rows only for samples of its host. It has half of the host rows, but a quarter of cold rows."""
    plan = planned(index_dedup=index_dedup)
    _, host, cold = (deduplicated(t, BATCH, 4) if index_dedup else t for t in plan.task.tables)
    found = {
        group[1]: dims
        for group, dims in all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size)).items()
    }
    assert set(found) == {"host_row_wise", "row_wise"}
    np.testing.assert_allclose(found["host_row_wise"], np.full((2, 2), 16 * host.pooling_factor / 2))
    np.testing.assert_allclose(found["row_wise"], np.full(4, 16 * cold.pooling_factor / 4), rtol=0.01)


def test_sizes_of_the_reductions():
    """A rank reduces gradients of hot rows with all ranks, those of its host rows with one rank of the other host."""
    plan = planned()
    found = {
        (each.collective, each.num_ranks, each.ranks_per_host, *each.size_bytes)
        for each in reductions(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
    }
    assert found == {("all_reduce", 4, 2, *[4.0 * 10 * 16] * 4), ("all_reduce", 2, 1, *[4.0 * 20 * 16] * 4)}


@pytest.mark.parametrize("index_dedup", [False, True])
def test_work_of_every_rank(index_dedup):
    """Every quantity is computed by hand from what a rank with B / W samples sends, receives and copies."""
    plan = planned(index_dedup=index_dedup)
    hot, host, cold = plan.task.tables
    sent_host, sent_cold = (
        (deduplicated(t, BATCH, 4) if index_dedup else t).pooling_factor * BATCH / 4 for t in (host, cold)
    )
    all_ids = BATCH / 4 * ITEMS.pooling_factor
    steps = {"hot": 1, "other": 1 + index_dedup}
    hot_ids = BATCH / 4 * hot.pooling_factor
    found_ids = steps["hot"] * hot_ids + steps["other"] * (all_ids - hot_ids)
    expected = {
        "modules": 1,
        "groups": 2,
        "replicas": 2,
        "features": 2,
        "bags": BATCH / 2 + BATCH,
        "sent_bags": 2 * BATCH / 4 + 4 * BATCH / 4,
        "ids": sent_host + sent_cold,
        "bucketized": sent_cold,
        "sent_ids": sent_host + sent_cold,
        "pooled": 16 * (hot_ids + sent_host + sent_cold),
        "unpooled": hot_ids + sent_host + sent_cold,
        "returned": 16 * (hot_ids + sent_host + sent_cold),
        "deduplicated": found_ids,
        "expanded": 16 * found_ids,
        "gradients": 16 * (10 + 20),
    }
    counts = ("modules", "groups", "replicas", "features")
    work = rank_work(plan.task, plan.shards, plan.ranks)
    for at, name in enumerate(QUANTITIES):
        scale = 1.0 if name in counts else 1e-6
        # 950 cold rows on 4 ranks are blocks of 238 rows and one of 236.
        np.testing.assert_allclose(work[:, at], scale * expected.get(name, 0.0), rtol=0.01, err_msg=name)


def test_kernels_of_host_rows_see_the_samples_of_their_host():
    plan, models = planned(), stepping_models()
    shard = next(shard for shard in plan.shards if shard.sharding_type == "host_row_wise")
    seen, samples = looked_up(shard, plan.task)
    assert samples == BATCH // 2
    single = whole(replace(seen.table, pooling_factor=1.0, pooling="sum", tier=None))
    bags = round(samples * seen.table.pooling_factor)
    expected = models.compute.shard_embeddings([single], bags, "sgd")
    np.testing.assert_array_equal(shard_embeddings([shard], plan.task, models), expected)


def test_costs_of_an_exchange_inside_hosts_are_those_of_a_job_on_one_host():
    plan, models = planned(), stepping_models()
    parts = step_parts(plan.task, plan.shards, plan.ranks, models)
    (on_hosts,) = (dims for dims in parts.dim_sums.values() if dims.ndim == 2)
    (everywhere,) = (dims for dims in parts.dim_sums.values() if dims.ndim == 1)
    cost = predicted_cost(parts, models, BATCH)
    expected = models.comm.backward_ms(everywhere, BATCH) + models.comm.backward_ms(on_hosts, BATCH // 2).ravel()
    np.testing.assert_allclose(cost.backward_comm_ms, expected)
    offsets = part_offsets_ms(parts, cost, models, BATCH)
    assert {ends.shape for ends in offsets.values()} == {(4, 2)}
    assert priced(plan, models).predicted == cost


def test_tiers_are_spread_beside_tables_that_are_searched():
    """The exchanges of tiers are fixed costs of the search; their columns join no all-to-all of the other tables."""
    task, models = tiered(), stepping_models()
    others = [Table("users", 500, 16, 2.0), Table("clicks", 500, 16, 2.0)]
    problem = Problem(replace(task, tables=[*task.tables, *others]), models, WEIGHTS_AND_OPTIMIZER)
    hot, host, cold = (table.name for table in task.tables)
    spread = spread_tables(
        {hot: "data_parallel", host: "host_row_wise", cold: "row_wise"}, problem.task, problem.memory
    )
    assert set(zip(spread.shards, spread.ranks, strict=True)) == set(placed_tiers(task))
    rest = column_problem(problem, spread)
    assert [table.name for table in rest.task.tables] == ["users", "clicks"]
    parts = step_parts(problem.task, spread.shards, spread.ranks, models)
    (cold_dims,) = (dims for dims in parts.dim_sums.values() if dims.ndim == 1)
    (host_dims,) = (dims for dims in parts.dim_sums.values() if dims.ndim == 2)
    backward = models.comm.backward_ms(host_dims, BATCH // 2).ravel() + models.comm.backward_ms(cold_dims, BATCH)
    forward = models.comm.forward_ms(host_dims, np.zeros((2, 2)), BATCH // 2).ravel()
    forward = forward + models.comm.forward_ms(cold_dims, backward - backward.min(), BATCH)
    without_groups = rest.background_ms - parts.own_ms - backward - forward
    np.testing.assert_allclose(without_groups, without_groups[0], atol=1e-9)
    assert spread_of(joined(problem, None, spread)).types == spread.types


def test_a_host_tier_must_be_whole_on_every_host():
    plan = planned()
    placed = list(zip(plan.shards, plan.ranks, strict=True))
    host = [entry for entry in placed if entry[0].sharding_type == "host_row_wise"]
    swapped = [*(entry for entry in placed if entry not in host), *((shard, 3 - rank) for shard, rank in host)]
    for wrong, message in (
        ([entry for entry in placed if entry != host[3]], "rows not covered from 20"),
        ([entry for entry in placed if entry not in host[2:]], "columns not covered from 0"),
        (swapped, "tiered modules would look up wrong rows"),
    ):
        shards, ranks = zip(*wrong, strict=True)
        with pytest.raises(PlanError, match=rf"'items/host' on host .*{message}"):
            Plan(plan.task, shards, ranks, "wrong")


def test_the_error_of_misplaced_cold_rows_says_that_torchrec_looks_them_up():
    plan = planned()
    swapped = [
        (shard, 3 - rank if shard.sharding_type == "row_wise" else rank)
        for shard, rank in zip(plan.shards, plan.ranks, strict=True)
    ]
    shards, ranks = zip(*swapped, strict=True)
    with pytest.raises(PlanError, match=r"'items/cold' .*TorchRec would look up wrong rows"):
        Plan(plan.task, shards, ranks, "wrong")


def test_memory_of_host_rows():
    """Weights, dense gradients and Adam's moments of 20 rows, their ids and outputs for 16 samples, and the index.

    The index has 12 bytes for each of the 40 rows that the two ranks of the host hold.
    """
    plan = planned(optimizer="adam")
    shard = next(shard for shard in plan.shards if shard.sharding_type == "host_row_wise")
    all_of_it = WEIGHTS_AND_OPTIMIZER.model_copy(update={"input_buffers": True, "output_buffers": True})
    weights = 20 * 16 * 4
    assert WEIGHTS_AND_OPTIMIZER.shard_bytes(shard, plan.task) == 4 * weights + 12 * 40
    ids = round(BATCH / 2 * shard.table.pooling_factor / 2)
    assert all_of_it.shard_bytes(shard, plan.task) == (4 * weights + 12 * 40 + 8 * (ids + 16 + 1) + 2 * 4 * 16 * ids)


def test_memory_of_hot_rows_with_rowwise_adagrad():
    """Weights and dense gradients of 10 rows, one number of the optimizer's state per row, and the index."""
    plan = planned(optimizer="rowwise_adagrad")
    shard = next(shard for shard in plan.shards if shard.sharding_type == "data_parallel")
    assert WEIGHTS_AND_OPTIMIZER.shard_bytes(shard, plan.task) == 2 * 10 * 16 * 4 + 4 * 10 + 12 * 10
