import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.plan_samples import (
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    plans_frame,
    rank_compute_samples,
)
from neuroshard_pipeline.evaluation.totals import plan_costs_frame, plan_totals
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

A, B, C = (Table(name, 100, 16, 2.0) for name in "abc")
TASK = ShardingTask([A, B, C], world_size=3, batch_size=32, memory_bytes=2**20, task_id="first")
COST = PlanCost((1.0, 2.0, 0.0), (1.0, 2.0, 0.0), (0.5, 0.1, 4.0), (0.2, 0.2, 0.1))


def plans():
    left, right = Shard(A, 0, 8), Shard(A, 8, 8)
    return [
        Plan(TASK, (whole(A), whole(B), whole(C)), (0, 0, 1), "one", COST),
        Plan(TASK, (whole(B), whole(C), whole(A)), (2, 1, 2), "two", COST),
        Plan(TASK, (left, whole(B), right, whole(C)), (0, 1, 2, 2), "three", COST),
    ]


def compute_costs(samples, failing=()):
    """Forward 1 ms per shard, backward 2 ms."""
    rows = [
        (s.sample_id, np.nan, np.nan, "broke") if s.sample_id in failing else (s.sample_id, n, 2.0 * n, None)
        for s in samples
        for n in [float(len(s.shards))]
    ]
    return pd.DataFrame(rows, columns=["sample_id", "forward_ms", "backward_ms", "error"])


def comm_costs(samples):
    rows = [
        (s.sample_id, rank, 1.0 + max(s.start_skew_ms) - s.start_skew_ms[rank], 0.1 * s.dim_sums[rank], None)
        for s in samples
        for rank in range(s.world_size)
    ]
    return pd.DataFrame(rows, columns=["sample_id", "rank", "forward_ms", "backward_ms", "error"])


def test_ranks_with_the_same_shards_share_a_sample():
    ranks = rank_compute_samples(plans())
    one, two, three = ranks.sample_ids
    assert one[0] == two[2]  # A and B whole, in another order
    assert one[1] == two[1]
    assert one[2] is two[0] is None
    assert len(ranks.samples) == len({sample.sample_id for sample in ranks.samples}) == 5
    halves = next(sample for sample in ranks.samples if sample.sample_id == three[0])
    assert [shard.embedding_dim for shard in halves.shards] == [8]


def test_sample_ids_are_stable_and_know_the_batch_size():
    ids = rank_compute_samples(plans()).sample_ids
    assert ids == rank_compute_samples(plans()).sample_ids
    larger = ShardingTask([A, B, C], 3, 64, 2**20)
    other = rank_compute_samples([Plan(larger, tuple(map(whole, (A, B, C))), (0, 0, 1), "one")]).sample_ids[0]
    assert other[0] != ids[0][0]


def test_three_phases_add_up():
    found = plans()
    ranks = rank_compute_samples(found)
    compute = measured_compute_ms(ranks, compute_costs(ranks.samples))
    assert compute == [(6.0, 3.0, 0.0), (0.0, 3.0, 6.0), (3.0, 3.0, 6.0)]
    backward_samples = backward_comm_samples(found)
    assert all(sample.start_skew_ms == (0.0, 0.0, 0.0) for sample in backward_samples.samples)
    backward = measured_comm_ms(backward_samples, comm_costs(backward_samples.samples), "backward")
    forward_samples = forward_comm_samples(found, compute, backward)
    np.testing.assert_allclose(forward_samples.samples[0].start_skew_ms, (9.2, 4.6, 0.0))
    forward = measured_comm_ms(forward_samples, comm_costs(forward_samples.samples), "forward")
    frame = plan_costs_frame(found, (compute, forward, backward))
    assert len(frame) == 9
    measured = plan_totals(frame).set_index("sharder")["measured_ms"]
    assert measured["one"] == pytest.approx(6.0 + 3.2 + 1.0)
    assert plan_totals(frame)["predicted_ms"].tolist() == pytest.approx([COST.embedding_cost_ms] * 3)


def test_a_failed_measurement_is_null_and_leaves_the_rest():
    found = plans()
    ranks = rank_compute_samples(found)
    broken = ranks.sample_ids[0][0]
    compute = measured_compute_ms(ranks, compute_costs(ranks.samples, failing={broken}))
    assert np.isnan(compute[0][0])
    collectives = forward_comm_samples(found, compute, [(0.0,) * 3] * 3)
    assert [names == (None,) * 3 for names in collectives.sample_ids] == [True, True, False]
    forward = measured_comm_ms(collectives, comm_costs(collectives.samples), "forward")
    costs = plan_totals(plan_costs_frame(found, (compute, forward, [(0.0,) * 3] * 3)))
    assert costs["measured_ms"].isna().tolist() == [True, True, False]


def test_frames_without_measurements_or_plans_keep_the_columns():
    frame = plan_costs_frame(plans())
    assert frame["measured_compute_ms"].isna().all()
    assert list(plan_costs_frame([]).columns) == list(frame.columns)
    assert list(plans_frame([]).columns) == list(plans_frame(plans()).columns)
    assert len(plans_frame(plans())) == 10
