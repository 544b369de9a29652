import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.augment import paper_settings
from neuroshard_pipeline.evaluation.anchors import AnchorParams, choose_anchors, drifts_of_parts
from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.totals import PREDICTED_COLUMNS

from .campaigns import ComputedCampaigns
from .measure_in_memory import measure_plans
from .test_plan_samples import comm_costs, compute_costs, plans

#: Columns of `search.anchors`.
ANCHOR_COLUMNS = ["part", "sample_id", "rank", "first_ms", "again_ms"]


@pytest.fixture
def first():
    """A training campaign, one sample of which failed."""
    reuse = {f"reuse_{index:02d}": float(index == 0) for index in range(17)}
    pool = pd.DataFrame(
        [{"table": name, "num_embeddings": 100, "pooling_factor": 2.0, "unique_rows": 40.0, **reuse} for name in "abc"]
    )
    samples = pd.DataFrame(
        [(f"compute-{index}", 32, table, 8) for index in range(6) for table in "abc"[: 1 + index % 3]],
        columns=["sample_id", "batch_size", "table", "embedding_dim"],
    )
    costs = pd.DataFrame(
        [(f"compute-{index}", 1.0 + index, 2.0, None) for index in range(6)],
        columns=["sample_id", "forward_ms", "backward_ms", "error"],
    )
    costs.loc[0, ["forward_ms", "backward_ms", "error"]] = [np.nan, np.nan, "broke"]
    comm = pd.DataFrame(
        [(f"comm-{world}", world, 32, rank, 8 + rank, 0.1 * rank) for world in (2, 3) for rank in range(world)],
        columns=["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"],
    )
    comm_costs = comm[["sample_id", "rank"]].assign(forward_ms=2.0, backward_ms=1.0, error=None)
    return MeasuredSamples(pool, samples, paper_settings(samples), costs, comm, comm_costs)


@pytest.fixture
def anchors(first):
    return choose_anchors(first, AnchorParams(compute_samples=100, comm_samples=100), [2, 3])


def test_anchors_separate_drift_from_the_error_of_the_models(anchors):
    """Compute has become 10 % slower and the backward collectives 100 %; the anchors show both."""
    first = anchors.compute_costs.set_index("sample_id")

    def compute(samples):
        ranks = [sample for sample in samples if sample.sample_id.startswith("rank-")]
        others = {sample.sample_id.partition("@")[0]: sample.sample_id for sample in samples if sample not in ranks}
        assert set(others) == {sample.sample_id for sample in anchors.compute}
        costs = compute_costs(ranks)
        again = first[["forward_ms", "backward_ms"]].astype(float).rename(others) * 1.1
        return pd.concat([costs, again.reset_index().assign(error=None)[costs.columns]])

    def comm(samples):
        plain = comm_costs([sample for sample in samples if sample.sample_id.startswith("collective-")])
        others = {sample.sample_id.partition("@")[0]: sample.sample_id for sample in samples}
        again = anchors.comm_costs.assign(backward_ms=2.0)[plain.columns].replace({"sample_id": others})
        return pd.concat([plain, again])

    costs, again = measure_plans(plans(), ComputedCampaigns(compute, comm), anchors)
    assert list(again.columns) == ANCHOR_COLUMNS
    shares = {part: drift.ratio - 1 for part, drift in drifts_of_parts(again).items()}
    assert shares == pytest.approx({"compute": 0.1, "forward_comm": 0.0, "backward_comm": 1.0})
    made_up = dict(zip(PREDICTED_COLUMNS[:3], (3.0, 2.5, 1.5), strict=True))
    costs = costs.assign(**made_up)
    told = prediction_errors(costs, bounds(costs), again)
    rows = costs[costs["measured_compute_ms"] > 0]
    ratio = 1.1 * rows["predicted_compute_ms"] / rows["measured_compute_ms"]
    assert told["compute"]["drift"] == pytest.approx(0.1)
    assert told["compute"]["bias_net_of_drift"] == pytest.approx((ratio - 1).mean())
    assert told["compute"]["mape_net_of_drift"] == pytest.approx((ratio - 1).abs().mean())
    assert told["compute"]["coverage_90_net_of_drift"] == pytest.approx((ratio.between(1 / 1.5, 1.5)).mean())
    assert told["forward_comm"]["bias_net_of_drift"] == pytest.approx(told["forward_comm"]["bias"])
    parts = [costs[f"measured_{part}_ms"] / (1 + shares[part]) for part in shares]
    net = sum(parts).groupby([costs["task_id"], costs["sharder"]]).max()
    predicted = costs[PREDICTED_COLUMNS[:3]].sum(axis=1).groupby([costs["task_id"], costs["sharder"]]).max()
    assert told["embedding_cost"]["bias_net_of_drift"] == pytest.approx((predicted / net - 1).mean())
    assert "coverage_90_net_of_drift" not in told["embedding_cost"]


def bounds(costs):
    """`search.plan_intervals` from 1/1.5 of the prediction to 1.5 times the prediction."""
    ends = {"low": 1 / 1.5, "high": 1.5}
    columns = {
        f"{end}_{part}_ms": factor * costs[f"predicted_{part}_ms"]
        for end, factor in ends.items()
        for part in ("compute", "forward_comm", "backward_comm")
    }
    return costs[["task_id", "sharder", "rank"]].assign(**columns)


def test_without_anchors_there_is_no_drift():
    costs, again = measure_plans(plans(), ComputedCampaigns(compute_costs, comm_costs))
    assert list(again.columns) == ANCHOR_COLUMNS
    assert again.empty
    assert drifts_of_parts(again) == {}
    assert "drift" not in prediction_errors(costs, anchors=again)["compute"]


def test_anchors_do_not_change_the_costs_of_plans(anchors):
    def compute(samples):
        return compute_costs(samples)

    alone = measure_plans(plans(), ComputedCampaigns(compute, comm_costs))
    together = measure_plans(plans(), ComputedCampaigns(compute, comm_costs), anchors)
    pd.testing.assert_frame_equal(alone[0], together[0])


def test_other_plans_of_a_task_share_no_records(anchors):
    """A restarted run skips what is stored. With one more plan, the whole task and the anchors are measured again."""

    def ids(measured_plans):
        campaigns = ComputedCampaigns(compute_costs, comm_costs)
        list(PlanMeasurement(tuple(measured_plans), campaigns, anchors).run_compute({}))
        return set(campaigns.measured[0])

    every = plans()
    task_id = every[0].task.task_id
    of_task = [plan for plan in every if plan.task.task_id == task_id]
    assert len(of_task) > 1
    assert ids(every) == ids(every)
    assert ids(of_task).isdisjoint(ids(of_task[1:]))


def test_resumed_campaigns_give_the_costs_of_a_measurement_in_memory(anchors):
    in_memory = measure_plans(plans(), ComputedCampaigns(compute_costs, comm_costs), anchors)
    campaigns = ComputedCampaigns(compute_costs, comm_costs)
    measurement = PlanMeasurement(tuple(plans()), campaigns, anchors)
    (compute,), (backward,) = measurement.run_compute({}), measurement.run_backward({})
    resumed = PlanMeasurement(tuple(plans()), campaigns, anchors)
    assert list(resumed.run_compute(compute)) == list(resumed.run_backward(backward)) == []
    (forward,) = resumed.run_forward(compute, backward, {})
    for found, expected in zip(resumed.costs(compute, backward, forward), in_memory, strict=True):
        pd.testing.assert_frame_equal(found, expected)
    assert len(campaigns.measured) == 3
