"""How half precision on the links, replica groups and tables of several kinds change the predicted parts of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.parts import all_to_alls, reductions, step_parts
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_problem
from neuroshard_pipeline.search.spread_estimate import SpreadEstimate
from neuroshard_pipeline.search.step_prices import step_prices
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from search.test_parts import planned


def exchanged(plan: Plan, gpus_per_host=None):
    found = reductions(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size), gpus_per_host)
    volumes = all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
    return {group: dims.tolist() for group, dims in volumes.items()}, found


def test_half_precision_halves_rows_and_their_sums_but_not_the_gradients_of_replicas():
    (volumes, sums), (half_volumes, half_sums) = exchanged(planned()), exchanged(planned(comm_precision="bf16"))
    assert half_volumes == {group: [dim / 2 for dim in dims] for group, dims in volumes.items()}
    for single, half in zip(sums, half_sums, strict=True):
        factor = 1.0 if single.collective == "all_reduce" else 0.5
        assert half.size_bytes.tolist() == (factor * single.size_bytes).tolist()


@pytest.mark.parametrize(
    ("gpus_per_host", "on_host"), [(None, 3), (8, 3), (4, 2), (2, 1)], ids=["unknown", "three", "two", "one"]
)
def test_replica_groups_average_weights_and_state_of_every_rank(gpus_per_host, on_host):
    """A group has 4 ranks, 2 on each of 2 hosts. A host of 4 GPUs therefore has ranks of two groups."""
    one = planned(optimizer="rowwise_adagrad")
    three = planned(optimizer="rowwise_adagrad", num_replica_groups=3, sync_interval=5)
    *others, averaging = exchanged(three, gpus_per_host)[1]
    assert (averaging.collective, averaging.num_ranks, averaging.ranks_per_host) == ("all_reduce", 3, on_host)
    weights = np.zeros(4)
    for shard, rank in zip(one.shards, one.ranks, strict=True):
        weights[rank] += (shard.sharding_type != "data_parallel") * (shard.weight_bytes + 4 * shard.num_rows)
    assert averaging.size_bytes.tolist() == weights.tolist()
    assert averaging.interval == 5
    replicas = next(each for each in others if each.collective == "all_reduce")
    assert (replicas.num_ranks, replicas.ranks_per_host) == (3 * 4, 2 * on_host)
    assert exchanged(one)[1][-1].collective == "all_reduce", "the last reduction is that of the replicas"
    assert exchanged(one)[1][-1].num_ranks == 4


def test_a_step_pays_its_share_of_an_averaging():
    models = step_models()
    often, seldom, free = (
        planned(models, num_replica_groups=4, sync_interval=interval).predicted for interval in (1, 10, 10**9)
    )
    added = np.subtract(often.reduction_ms, free.reduction_ms)
    assert (added > 0).all()
    assert np.subtract(seldom.reduction_ms, free.reduction_ms) == pytest.approx(added / 10, rel=1e-6)


def test_adam_has_no_replica_groups():
    with pytest.raises(TaskError, match="DMPCollection cannot average the state of adam"):
        planned(optimizer="adam", num_replica_groups=2)


@given(st.data())
@settings(max_examples=20)
def test_tables_of_other_data_types_and_poolings_have_lookups_of_their_own(data):
    kinds = st.fixed_dictionaries({"data_type": st.sampled_from(("fp32", "fp16"))}) | st.just({"pooling": "mean"})
    tables = [Table(f"t{at}", 1000 + at, 16, 3.0, **data.draw(kinds)) for at in range(4)]
    task, models = ShardingTask(tables, 2, 64, 2**40), step_models()
    together = step_parts(task, [whole(table) for table in tables], [0] * 4, models)
    alone = np.zeros((2, 2))
    for kind in {(table.data_type, table.pooling) for table in tables}:
        of_kind = [whole(table) for table in tables if (table.data_type, table.pooling) == kind]
        alone += step_parts(task, of_kind, [0] * len(of_kind), models).compute_ms
    assert together.compute_ms == pytest.approx(alone)
    assert len(together.dim_sums) == 1


def test_a_search_of_columns_knows_what_other_types_of_the_module_cost_it():
    """The search has fixed costs for two groups and one more module, and for a copy that joins outputs of the other."""
    models = step_models()
    for size in (2, 8):
        models.step.prices[size]["module"] |= {"joined": 3.0, "modules": 0.7}
    tables = Table("rows", 1000, 16, 2.0), Table("columns", 500, 8, 1.0), Table("other", 500, 8, 1.0, module="b")
    task = ShardingTask(tables, 4, 64, 2**40)
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    spread = Spread({"rows": "row_wise"}, tuple(row_shards(tables[0], "row_wise", 4)), tuple(range(4)))
    rest = column_problem(problem, spread)
    alone = step_parts(task, spread.shards, spread.ranks, models).own_ms
    groups_ms = step_prices(models.step, task).exchanges_ms(0, 2)  # of two modules
    joined_ms = 3.0 * 16 * (16 + 8) / 1e6  # the other module has one type only
    assert rest.background_ms == pytest.approx(alone + groups_ms + 0.7 + joined_ms)


def test_a_search_of_columns_and_the_price_agree_on_ranks_with_several_kernels():
    """A weighted table is in another module, whose outputs are not copied."""
    plain, half = Table("plain", 1000, 16, 2.0), Table("half", 1000, 8, 1.0, data_type="fp16")
    other, weighted = replace(plain, name="other"), replace(half, name="weighted", is_weighted=True)
    task = ShardingTask([plain, half, other, weighted], 2, 64, 2**40)
    free, dear = step_models(), step_models()
    for size in (2, 8):
        dear.step.prices[size]["module"] |= {"kernels": 0.5, "gathered": 3.0}
    added = 0.5 + 3.0 * 64 * (16 + 8) / 1e6
    for own, expected in (([plain, half], added), ([plain, other], 0.0), ([plain, weighted], 0.0), ([half], 0.0)):
        searched, of_plan = [], []
        for models in (free, dear):
            columns = column_problem(Problem(task, models, WEIGHTS_AND_OPTIMIZER), Spread({}, (), ()))
            sums = columns.embeddings_of([whole(table) for table in own]).sum(axis=0)
            searched.append(columns.models.compute.costs_from_sums(sums, 64).sum())
            of_plan.append(step_parts(task, [whole(table) for table in own], [0] * len(own), models).own_ms[0])
        assert searched[1] - searched[0] == pytest.approx(expected)
        assert of_plan[1] - of_plan[0] == pytest.approx(expected)


def test_a_search_and_the_price_agree_on_half_precision_and_averaging():
    """With equal tables on all ranks, the search's prices equal the input dist, module and reductions of the plan."""
    models = step_models()
    tables = [Table(f"t{at}", 10_000, 16, 2.0) for at in range(4)]
    for options in ({"comm_precision": "fp16"}, {"num_replica_groups": 4, "sync_interval": 2}):
        task = ShardingTask(tables, 4, 64, 2**40, **options)
        cost = priced(Plan(task, tuple(map(whole, tables)), (0, 1, 2, 3), "even"), models).predicted
        prices = step_prices(models.step, task)
        own = prices.own_ms([whole(tables[0])])[0] + prices.shared_ms(list(map(whole, tables))).sum()
        groups_ms = prices.groups_ms([whole(tables[0])], [])
        further = np.add(cost.input_dist_ms, cost.module_ms)[0] + (cost.reduction_ms[0] if cost.reduction_ms else 0.0)
        assert own + groups_ms == pytest.approx(further)
        assert Problem(task, models, WEIGHTS_AND_OPTIMIZER).dims[0] == 16 * task.comm_share


def test_a_search_and_the_price_agree_on_averaging_between_hosts():
    """Two of four groups share a host, and all four ranks of a group on that host use its network cards at once."""
    models, tables = load_cost_models("h100"), [Table(f"t{at}", 10_000, 16, 2.0) for at in range(8)]
    task = ShardingTask(tables, 8, 64, 2**40, local_world_size=4, num_replica_groups=4)
    parts = step_parts(task, list(map(whole, tables)), range(8), models)
    found = step_prices(models.step, task).own_ms([whole(tables[0])])
    without = step_prices(models.step, replace(task, num_replica_groups=1)).own_ms([whole(tables[0])])
    assert found - without == pytest.approx(parts.reduction_ms[0])


def test_the_estimate_counts_the_copy_that_joins_several_types():
    models = step_models()
    models.step.prices[2]["module"]["joined"] = models.step.prices[8]["module"]["joined"] = 1e6
    tables = [Table(f"t{at}", 1000, 16, 2.0) for at in range(4)]
    task = ShardingTask(tables, 4, 64, 2**40)
    estimate = SpreadEstimate(Problem(task, models, WEIGHTS_AND_OPTIMIZER), tables)
    none, some, every = (np.arange(4)[None] < count for count in (0, 2, 4))
    joined_ms = 1e6 * 16 * 4 * 16 / 1e6  # of 16 samples per rank
    for replicas, cut in ((none, some), (some, none), (some, ~some)):
        assert estimate.costs_ms(replicas, cut, "row_wise") > joined_ms
    for replicas, cut in ((none, none), (every, none), (none, every)):
        assert estimate.costs_ms(replicas, cut, "row_wise") < joined_ms
