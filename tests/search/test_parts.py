"""What a plan exchanges, against hand counts of TorchRec's collectives (batch of B samples, tables of D columns)."""

import numpy as np
import pytest

from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.parts import all_to_alls, reductions, step_parts
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import part_offsets_ms, price_plan, priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.test_price import PlainModels

WHOLE, ROWS, ON_HOST, GRID, COPIED = (Table(name, 100, 16, 2.0) for name in ("whole", "rows", "host", "grid", "copied"))
BATCH = 32


def planned(models=None, **task):
    """One table of every type that a pooled table may have, on 4 ranks of 2 hosts."""
    tables = (WHOLE, ROWS, ON_HOST, GRID, COPIED)
    task = ShardingTask(tables, 4, BATCH, 2**60, local_world_size=2, **task)
    placed = [
        (whole(WHOLE), 3),
        *zip(row_shards(ROWS, "row_wise", 4), range(4), strict=True),
        *zip(row_shards(ON_HOST, "table_row_wise", 2), (2, 3), strict=True),
        *zip(row_shards(GRID, "grid_shard", 2, 0, 12), (0, 1), strict=True),
        *zip(row_shards(GRID, "grid_shard", 2, 12, 4), (2, 3), strict=True),
        *((whole(COPIED, "data_parallel"), rank) for rank in range(4)),
    ]
    shards, ranks = zip(*placed, strict=True)
    plan = Plan(task, shards, ranks, "by hand")
    return plan if models is None else priced(plan, models)


def stepping_models():
    """The models of `test_price` with a step cost model.

    1 ms per MB of reductions, 1 ms per 1000 dense gradients, 0.5 ms per feature, 0.25 ms per group of tables.
    """
    names = ("reduce_scatter", "all_gather", "all_reduce")
    curve = Curve(np.array([1.0, 1e9]), np.array([1e-6, 1e3]))
    curves = {Group(2, 1): curve, Group(4, 2): curve}
    costs = ReductionCosts(dict.fromkeys(names, curves), dict.fromkeys(names, 0.1), dict.fromkeys(names, 0.0))
    prices = {"input_dist": {"features": 0.5}, "module": {"groups": 0.25}, "dense": {"gradients": 1000.0}}
    models = PlainModels()
    models.step = StepCostModel({4: prices}, costs)
    return models


def test_volumes_of_the_all_to_alls():
    """All ranks of a host send equal parts of a row-cut table's sums; row-wise tables need no all-to-all."""
    plan = planned()
    volumes = {
        group[1]: dims.tolist()
        for group, dims in all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size)).items()
    }
    assert volumes == {
        "column_wise": [0, 0, 0, 16],
        "table_row_wise": [0, 0, 8, 8],
        "grid_shard": [6, 6, 2, 2],
    }


def test_sizes_of_the_reductions():
    """The buffer of a row-cut table has B * D floats on each of its ranks; a replica's has one float per weight."""
    plan = planned()
    found = {
        (each.collective, each.num_ranks, *each.size_bytes)
        for each in reductions(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
    }
    partial = [
        (4, *[4.0 * BATCH * 16] * 4),
        (2, 0.0, 0.0, *[4.0 * BATCH * 16] * 2),
        (2, *[4.0 * BATCH * 12] * 2, *[4.0 * BATCH * 4] * 2),
    ]
    expected = {(name, *of) for of in partial for name in ("reduce_scatter", "all_gather")}
    assert found == expected | {("all_reduce", 4, *[4.0 * 100 * 16] * 4)}


def test_every_part_is_in_the_cost_of_a_rank():
    cost = planned(stepping_models()).predicted
    dense_ms = 1000 * 100 * 16 / 1e6
    assert cost.input_dist_ms == (1.0, 1.0, 1.5, 2.0)  # 2, 2, 3 and 4 features
    assert cost.module_ms == pytest.approx([4 * 0.25 + dense_ms] * 4)
    mb = 4 * BATCH / 1e6
    assert cost.reduction_ms == pytest.approx(
        [2 * (16 + 12) * mb + 0.0064, 2 * (16 + 12) * mb + 0.0064] + [2 * (16 + 16 + 4) * mb + 0.0064] * 2
    )
    parts = (cost.compute_ms, cost.forward_comm_ms, cost.backward_comm_ms, cost.input_dist_ms, cost.reduction_ms)
    np.testing.assert_allclose(cost.rank_ms, np.sum([*parts, cost.module_ms], axis=0))


def test_a_trainer_that_hides_the_input_dist_does_not_pay_it():
    shown, hidden = planned(stepping_models()), planned(stepping_models(), pipelines_input_dist=True)
    assert hidden.predicted.input_dist_ms == (0.0,) * 4
    # Every rank waits for rank 3, which has most lookups and most ids, in the next forward all-to-all.
    np.testing.assert_allclose(np.subtract(shown.predicted.rank_ms, hidden.predicted.rank_ms), 2.0)


def test_replicas_alone_have_no_all_to_all():
    task = ShardingTask((COPIED,), 4, BATCH, 2**60, local_world_size=2)
    shards, ranks = (whole(COPIED, "data_parallel"),) * 4, (0, 1, 2, 3)
    problem = Problem(task, stepping_models(), WEIGHTS_AND_OPTIMIZER)
    plan = price_plan(problem, Placement(shards, ranks), "copies")
    assert plan.predicted.forward_comm_ms == plan.predicted.backward_comm_ms == (0.0,) * 4


def test_squares_of_part_offsets_add_up_to_that_of_the_interval_of_a_rank():
    plan, models = planned(stepping_models()), stepping_models()
    parts = step_parts(plan.task, plan.shards, plan.ranks, models, bounded=True)
    offsets = part_offsets_ms(parts, plan.predicted, models, BATCH)
    assert set(offsets) == {"compute", "forward_comm", "backward_comm", "input_dist", "reduction", "module"}
    high = np.array(plan.predicted.rank_ms) + np.sqrt(sum(ends[:, 1] ** 2 for ends in offsets.values()))
    np.testing.assert_allclose([bounds[1] for bounds in plan.interval_ms], high)
    np.testing.assert_allclose(offsets["reduction"][:, 1], np.expm1(0.1) * np.array(plan.predicted.reduction_ms))
