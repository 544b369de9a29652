import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.sharders.anchors import ANCHOR_COLUMNS, NO_ANCHORS, AnchorParams, choose_anchors, drifts
from neuroshard_pipeline.sharders.measured import measure_plan_costs, measure_with_anchors
from neuroshard_pipeline.sharders.summary import prediction_errors
from neuroshard_pipeline.tables import paper_settings

from .test_evaluation import comm_costs, compute_costs, plans


@pytest.fixture
def campaign():
    """Samples of a training campaign, one of which failed, and their costs."""
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
    return (samples, pool, paper_settings(samples), costs), (comm, comm_costs)


def params(compute=100, comm=100, seed=0):
    return AnchorParams(compute_samples=compute, comm_samples=comm, seed=seed)


def test_anchors_are_measured_samples_of_the_plans_world_sizes(campaign):
    anchors = choose_anchors(*campaign, [3], params())
    assert {sample.sample_id for sample in anchors.compute} == {f"compute-{index}" for index in range(1, 6)}
    assert [sample.sample_id for sample in anchors.comm] == ["comm-3"]
    assert len(next(sample for sample in anchors.compute if sample.sample_id == "compute-5").shards) == 3


def test_the_choice_follows_the_seed_and_the_number(campaign):
    chosen = [
        tuple(s.sample_id for s in choose_anchors(*campaign, [2, 3], params(2, 1, seed)).compute) for seed in (0, 0)
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 2
    none = choose_anchors(*campaign, [4], params(0, 5))
    assert none.compute == none.comm == ()


def test_anchors_tell_drift_from_the_models_error(campaign):
    """A machine that has become a tenth slower for compute and half as fast backward: anchors show it, part by part."""
    anchors = choose_anchors(*campaign, [2, 3], params())
    first = anchors.compute_costs.set_index("sample_id")

    def compute(samples):
        ranks = [sample for sample in samples if sample.sample_id.startswith("rank-")]
        assert set(samples) == {*ranks, *anchors.compute}
        costs = compute_costs(ranks)
        again = first[["forward_ms", "backward_ms"]].astype(float) * 1.1
        return pd.concat([costs, again.reset_index().assign(error=None)[costs.columns]])

    def comm(samples):
        plain = comm_costs([sample for sample in samples if sample.sample_id.startswith("collective-")])
        again = anchors.comm_costs.assign(backward_ms=2.0)[plain.columns]
        return pd.concat([plain, again])

    costs, again = measure_with_anchors(plans(), anchors, compute, comm)
    assert list(again.columns) == ANCHOR_COLUMNS
    assert drifts(again) == pytest.approx({"compute": 0.1, "forward_comm": 0.0, "backward_comm": 1.0})
    errors = prediction_errors(costs, anchors=again)
    compute_rows = costs[costs["measured_compute_ms"] > 0]
    net = (1.1 * compute_rows["predicted_compute_ms"] / compute_rows["measured_compute_ms"] - 1).mean()
    assert errors["compute"]["bias_net_of_drift"] == pytest.approx(net)
    assert errors["compute"]["drift"] == pytest.approx(0.1)
    assert errors["forward_comm"]["bias_net_of_drift"] == pytest.approx(errors["forward_comm"]["bias"])


def test_without_anchors_plans_cost_the_same():
    costs, again = measure_with_anchors(plans(), NO_ANCHORS, compute_costs, comm_costs)
    pd.testing.assert_frame_equal(costs, measure_plan_costs(plans(), compute_costs, comm_costs))
    assert list(again.columns) == ANCHOR_COLUMNS
    assert again.empty
    assert drifts(again) == {}
    assert "drift" not in prediction_errors(costs, anchors=again)["compute"]
