from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.search.column_costs import cheapest_plans, embedding_cost_ms, start_skew_ms
from neuroshard_pipeline.search.models import quantised
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan, priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import QUICK, WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_tables


class ThreePerShard:
    """Forward 1 ms and backward 2 ms per shard, predicted without error."""

    def shard_embeddings(self, shards, batch_size, optimizer="sgd"):  # noqa: ARG002
        return np.ones((len(shards), 1))

    def costs_from_sums(self, sums, batch_size):  # noqa: ARG002
        return 0.5 + sums * (1.0, 2.0)  # 0.5 ms of launch in each direction

    def interval_from_sums(self, sums, batch_size):
        return np.repeat(self.costs_from_sums(sums, batch_size).sum(axis=-1, keepdims=True), 2, axis=-1)


class Waits:
    """Backward: 0.1 ms per column. Forward: 1 ms after the last rank has entered. Predicted without error."""

    def forward_ms(self, dim_sums, start_skew_ms, batch_size):  # noqa: ARG002
        return 1.0 + np.max(start_skew_ms, axis=-1, keepdims=True) - start_skew_ms

    def backward_ms(self, dim_sums, batch_size):  # noqa: ARG002
        return 0.1 * np.asarray(dim_sums)

    def forward_interval_ms(self, dim_sums, start_skew_ms, batch_size):
        return self.forward_ms(dim_sums, start_skew_ms, batch_size)[..., None] * (1.0, 1.0)

    def backward_interval_ms(self, dim_sums, batch_size):
        return self.backward_ms(dim_sums, batch_size)[..., None] * (1.0, 1.0)


class PlainModels:
    compute, comm = ThreePerShard(), Waits()

    step = None

    def caveats(self, task):  # noqa: ARG002
        return ("made up",)


def test_costs_by_hand():
    tables = random_tables(np.random.default_rng(0), 3, dims=(8,))
    task = ShardingTask(tables, 3, 16, 2**60)
    plan = priced(Plan(task, tuple(map(whole, tables)), (0, 2, 0), "by hand"), PlainModels())
    cost = plan.predicted
    assert cost.forward_compute_ms == (2.5, 0.0, 1.5)
    assert cost.backward_compute_ms == (4.5, 0.0, 2.5)
    assert cost.backward_comm_ms == pytest.approx((1.6, 0.0, 0.8))
    # Ready after 8.6, 0 and 4.8 ms: every rank has received everything 1 ms after the slowest has entered.
    assert cost.forward_comm_ms == pytest.approx((1.0, 9.6, 4.8))
    assert cost.embedding_cost_ms == pytest.approx(9.6)
    assert plan.caveats == ("made up",)
    assert [list(bounds) for bounds in plan.interval_ms] == [[ms, ms] for ms in cost.rank_ms]


def test_the_start_skew_is_relative_to_the_rank_of_each_plan_that_starts_first():
    skew = start_skew_ms([[1.0, 3.0], [5.0, 4.0]], [[0.5, 0.5], [0.0, 2.0]])
    assert skew.tolist() == [[0.0, 2.0], [0.0, 1.0]]


def test_many_plans_at_once_cost_the_same_as_each_alone():
    rng, models = np.random.default_rng(0), small_models()
    compute_ms, dims = rng.uniform(0, 5, (7, 4)), rng.integers(0, 200, (7, 4))
    together = embedding_cost_ms(models, compute_ms, dims, 512)
    alone = [embedding_cost_ms(models, c[None], d[None], 512)[0] for c, d in zip(compute_ms, dims, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_intervals_contain_the_prediction_and_add_in_quadrature():
    task, models = ShardingTask(random_tables(np.random.default_rng(3), 9), 4, 512, 2**60), small_models(3)
    ranks = (0, 0, 1, 1, 1, 2, 2, 0, 0)  # rank 3 stays empty
    plan = priced(Plan(task, tuple(map(whole, task.tables)), ranks, "by hand"), models)
    cost, batch_size = plan.predicted, task.batch_size
    assert len(plan.interval_ms) == 4
    for rank, (low, high) in enumerate(plan.interval_ms):
        shards = plan.shards_of(rank)
        compute = cost.compute_ms[rank]
        upper = 0.0
        if shards:
            sums = models.compute.shard_embeddings(shards, batch_size).sum(axis=0)
            upper = models.compute.interval_from_sums(sums, batch_size)[1] - compute
        parts = (upper, 0.1 * cost.backward_comm_ms[rank], 0.2 * cost.forward_comm_ms[rank])
        assert high - cost.rank_ms[rank] == pytest.approx(sum(part**2 for part in parts) ** 0.5)
        assert low < cost.rank_ms[rank]
    assert f"= {cost.rank_ms[1]:.3f} ms (90 % prediction interval: {plan.interval_ms[1][0]:.3f} to " in plan.explain()
    assert "uncertainty: " in plan.explain()


def test_a_placement_costs_the_same_as_its_plan_priced_again():
    """The plan has halves of a table and tables kept together; `priced` makes a new problem of its shards."""
    tables = [Table(f"t{i}", 1000 * (i + 1), 16, 2.0 + i) for i in range(4)]
    task = ShardingTask(tables, 3, 512, 2**30, constraints=Constraints(together=[["t1", "t3"]]))
    problem = Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER)
    whole_tables = problem.whole_tables.tolist()
    kinds = np.array([*problem.halves(whole_tables[:1])[0], *whole_tables[1:]])
    placement = problem.placement(kinds, np.array([0, 1, 2, 0]))
    assert placement.shards[:2] == (Shard(tables[0], 0, 8), Shard(tables[0], 8, 8))
    assert [array.tolist() for array in problem.kinds_of(placement)] == [kinds.tolist(), [0, 1, 2, 0]]
    plan = price_plan(problem, placement, "by hand")
    again = priced(Plan(task, plan.shards, plan.ranks, "by hand"), small_models())
    assert again.predicted == plan.predicted
    assert again.interval_ms == plan.interval_ms


def test_every_table_and_width_is_embedded_once():
    embedded = []

    class Counts(ThreePerShard):
        def shard_embeddings(self, shards, batch_size, optimizer="sgd"):
            embedded.extend((shard.table.name, shard.embedding_dim) for shard in shards)
            return super().shard_embeddings(shards, batch_size, optimizer)

    models = PlainModels()
    models.compute = Counts()
    tables = random_tables(np.random.default_rng(0), 5, dims=(16,))
    problem = Problem(ShardingTask(tables, 2, 16, 2**60), models, WEIGHTS_AND_OPTIMIZER)
    halves = problem.halves(problem.whole_tables.tolist())
    placement = problem.placement(halves.ravel(), np.arange(10) % 2)
    price_plan(problem, placement, "by hand")
    price_plan(problem, Placement(tuple(map(whole, tables)), (0, 1, 0, 1, 0)), "by hand")
    assert len(embedded) == len(set(embedded)) == 10


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_the_cheapest_plans_are_those_of_comparing_the_costs_of_all_ranks(seed):
    rng = np.random.default_rng(seed)
    models, plans, ranks = shipped_models(), 30, int(rng.choice([2, 8, 64]))
    dims = rng.choice([64, 128, 256, 300], size=(plans, ranks))
    compute_ms = 1.0 + rng.gamma(2.0, 0.1, size=dims.shape)
    added_ms = 0.05 * rng.random(plans)
    group = rng.integers(3, size=plans)
    cost = quantised(embedding_cost_ms(models, compute_ms, dims, 4096)) + quantised(added_ms)
    limits = np.array([np.inf, np.median(cost), 0.0])
    best, best_cost = cheapest_plans(models, compute_ms, dims, added_ms, 4096, group, limits)
    for number in range(3):
        least = min(cost[group == number], default=np.inf)
        if abs(least - limits[number]) > 2:
            assert best_cost[number] == pytest.approx(min(least, limits[number]), abs=2)
            assert (best[number] >= 0) == (least < limits[number])
            assert best[number] < 0 or cost[best[number]] == pytest.approx(least, abs=2)


@cache
def shipped_models():
    return load_cost_models("h100")


def test_a_part_of_a_sequence_table_is_priced_in_the_kernel_of_the_whole_table():
    """Changes that a plan does not make may cut the table, beside tables of other kernels."""
    tables = [Table("s", 10**6, 16, 20.0, pooling="none"), Table("p", 10**6, 64, 5.0), Table("q", 10**5, 16, 5.0)]
    plan = shard(ShardingTask(tables, 4, 8192, 2**34), shipped_models(), params=QUICK)
    assert plan.predicted_cost_ms > 0
