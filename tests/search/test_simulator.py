import numpy as np
import pytest

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import embedding_cost_ms, simulate, with_intervals, with_predicted_cost
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.small_models import small_models
from search.tasks import random_tables


class TenPerShard:
    """Forward 1 ms and backward 2 ms per shard."""

    def shard_embeddings(self, shards, batch_size, optimizer="sgd"):  # noqa: ARG002
        return np.ones((len(shards), 1))

    def costs_from_sums(self, sums, batch_size):  # noqa: ARG002
        return 0.5 + sums * (1.0, 2.0)  # 0.5 ms of launch each


class Waits:
    """Backward: 0.1 ms per column. Forward: 1 ms after the last rank has entered."""

    def forward_ms(self, dim_sums, start_skew_ms, batch_size):  # noqa: ARG002
        return 1.0 + np.max(start_skew_ms, axis=-1, keepdims=True) - start_skew_ms

    def backward_ms(self, dim_sums, batch_size):  # noqa: ARG002
        return 0.1 * np.asarray(dim_sums)


class PlainModels:
    compute, comm = TenPerShard(), Waits()

    def caveats(self, task):  # noqa: ARG002
        return ("made up",)


def test_costs_by_hand():
    tables = random_tables(np.random.default_rng(0), 3, dims=(8,))
    cost = simulate(PlainModels(), [whole(table) for table in tables], [0, 2, 0], world_size=3, batch_size=16)
    assert cost.forward_compute_ms == (2.5, 0.0, 1.5)
    assert cost.backward_compute_ms == (4.5, 0.0, 2.5)
    assert cost.backward_comm_ms == pytest.approx((1.6, 0.0, 0.8))
    # Ready after 8.6, 0 and 4.8 ms: everyone has everything 1 ms after the slowest has entered.
    assert cost.forward_comm_ms == pytest.approx((1.0, 9.6, 4.8))
    assert cost.embedding_cost_ms == pytest.approx(9.6)


def test_many_plans_at_once_cost_what_each_costs_alone():
    rng, models = np.random.default_rng(0), small_models()
    compute_ms, dims = rng.uniform(0, 5, (7, 4)), rng.integers(0, 200, (7, 4))
    together = embedding_cost_ms(models, compute_ms, dims, 512)
    alone = [embedding_cost_ms(models, c[None], d[None], 512)[0] for c, d in zip(compute_ms, dims, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_intervals_hold_the_prediction_and_add_in_quadrature():
    task, models = ShardingTask(random_tables(np.random.default_rng(3), 9), 4, 512, 2**60), small_models(3)
    ranks = (0, 0, 1, 1, 1, 2, 2, 0, 0)  # rank 3 stays empty
    plan = with_intervals(
        with_predicted_cost(Plan(task, tuple(map(whole, task.tables)), ranks, "by hand"), models), models
    )
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
    assert f"= {cost.rank_ms[1]:.3f} ms (90 %: {plan.interval_ms[1][0]:.3f} to " in plan.explain()
    assert "doubt: the 90 % intervals of " in plan.explain()
