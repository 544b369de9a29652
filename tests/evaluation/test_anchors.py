"""Anchors, which are training samples measured again among later samples, show and remove the machine's drift."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.augment import paper_settings
from neuroshard_pipeline.evaluation.anchors import (
    NO_ANCHORS,
    AnchorParams,
    among,
    anchors_frame,
    choose_anchors,
    drifts_of_parts,
    evenly_spaced,
    fit_drifts,
)
from neuroshard_pipeline.evaluation.drift import without_drift
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.tables.frames import comm_samples_to_frame
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

SHARD = whole(Table("a", 100, 16, 2.0))


def samples(count, prefix="compute"):
    return [ComputeSample(f"{prefix}-{index}", 32, (SHARD,)) for index in range(count)]


def costs_of(of, forward_ms, backward_ms=None):
    backward = forward_ms if backward_ms is None else backward_ms
    ids = [sample.sample_id for sample in of]
    return pd.DataFrame({"sample_id": ids, "forward_ms": forward_ms, "backward_ms": backward, "error": None})


@settings(max_examples=30)
@given(st.floats(0.5, 2.0), st.floats(0.8, 1.25), st.floats(0.5, 2.0), st.integers(8, 60))
def test_a_drift_of_scale_or_of_scale_and_slope_is_undone(scale, power, backward_scale, count):
    first = np.geomspace(0.1, 20.0, count)
    of = samples(count)
    now = costs_of(of, scale * first**power, backward_scale * first)
    drifts = fit_drifts(costs_of(of, first), now)
    undone = without_drift(now, drifts)
    assert undone["forward_ms"].to_numpy() == pytest.approx(first, rel=1e-6)
    assert undone["backward_ms"].to_numpy() == pytest.approx(first, rel=1e-6)
    assert drifts["backward_ms"].slope == 1.0
    assert drifts["backward_ms"].ratio == pytest.approx(backward_scale)


def test_noise_of_single_anchors_hardly_shifts_the_drift():
    rng = np.random.default_rng(0)
    first, of = np.geomspace(0.1, 20.0, 60), samples(60)
    for _ in range(20):
        noisy = costs_of(of, 1.1 * first * np.exp(rng.normal(0, 0.03, 60)))
        drift = fit_drifts(costs_of(of, first), noisy)["forward_ms"]
        assert drift.undone(pd.Series([1.1 * 5.0]))[0] == pytest.approx(5.0, rel=0.02)


def test_disturbed_anchors_do_not_bend_the_drift():
    first, of = np.geomspace(0.1, 20.0, 40), samples(40)
    now = 1.2 * first
    now[[3, 17, 39]] *= 5.0
    undone = without_drift(costs_of(of, now), fit_drifts(costs_of(of, first), costs_of(of, now)))
    calm = np.setdiff1d(np.arange(40), [3, 17, 39])
    assert undone["forward_ms"].to_numpy()[calm] == pytest.approx(first[calm], rel=1e-6)


def test_the_slope_is_1_with_few_anchors_and_nothing_changes_without_any():
    first, of = np.array([1.0, 2.0, 4.0]), samples(3)
    drift = fit_drifts(costs_of(of, first), costs_of(of, first**1.2))["forward_ms"]
    assert drift.slope == 1.0
    nothing = fit_drifts(costs_of(of, first), costs_of([], []))["forward_ms"]
    assert (nothing.intercept, nothing.slope, nothing.anchors) == (0.0, 1.0, 0)


def test_failed_samples_are_not_chosen_as_anchors():
    of = samples(20)
    costs = costs_of(of, np.linspace(1.0, 20.0, 20))
    costs.loc[[0, 19], "error"] = "broke"
    chosen = [sample.sample_id for sample in evenly_spaced(of, costs, 4)]
    assert chosen == ["compute-1", "compute-7", "compute-12", "compute-18"]
    assert len(evenly_spaced(of, costs, 100)) == 18
    assert evenly_spaced(of, costs, 0) == []


def test_collectives_are_anchored_rank_by_rank():
    of = [CommSample(f"comm-{index}", 32, (8, 16), (0.0, 0.0)) for index in range(10)]
    ids = [sample.sample_id for sample in of for _ in range(2)]
    first = pd.DataFrame({"sample_id": ids, "rank": [0, 1] * 10, "forward_ms": 1.0, "backward_ms": 2.0, "error": None})
    drifts = fit_drifts(first, first.assign(forward_ms=1.5, backward_ms=2.2))
    assert drifts["forward_ms"].anchors == 20
    assert drifts["forward_ms"].ratio == pytest.approx(1.5)
    assert drifts["backward_ms"].ratio == pytest.approx(1.1)


def test_a_collective_that_failed_on_one_rank_is_not_chosen():
    of = [CommSample(f"comm-{index}", 32, (8, 16), (0.0, 0.0)) for index in range(2)]
    costs = costs_of([of[0], of[0], of[1], of[1]], 1.0).assign(rank=[0, 1, 0, 1])
    costs.loc[1, "error"] = "broke"
    assert evenly_spaced(of, costs, 2) == [of[1]]


def test_both_kinds_are_chosen_and_only_world_sizes_that_are_measured_anyway():
    pool = pd.DataFrame([{"table": "a", "num_embeddings": 100, "pooling_factor": 2.0}])
    lookups = samples(20)
    collectives = [CommSample(f"comm-{world}", 32, (8,) * world, (0.0,) * world) for world in (2, 3)]
    costs = costs_of(lookups, np.arange(1.0, 21.0))
    comm_costs = costs_of(collectives, 1.0).assign(rank=0)
    rows = [(sample.sample_id, sample.batch_size, "a", 16) for sample in lookups]
    frame = pd.DataFrame(rows, columns=["sample_id", "batch_size", "table", "embedding_dim"])
    first = MeasuredSamples(pool, frame, paper_settings(frame), costs, comm_samples_to_frame(collectives), comm_costs)
    params = AnchorParams(compute_samples=5, comm_samples=5)
    chosen = choose_anchors(first, params, [3])
    assert len(chosen.compute) == 5
    assert {chosen.compute[0].sample_id, chosen.compute[-1].sample_id} == {"compute-0", "compute-19"}
    assert chosen.comm == (collectives[1],)
    assert set(chosen.compute_costs["sample_id"]) == {sample.sample_id for sample in chosen.compute}
    assert set(chosen.comm_costs["sample_id"]) == {"comm-3"}
    assert len(choose_anchors(first, params).comm) == 2
    assert drifts_of_parts(anchors_frame(NO_ANCHORS, costs, comm_costs, comm_costs)) == {}


@settings(max_examples=30)
@given(st.integers(0, 40), st.integers(0, 15))
def test_samples_keep_their_order_among_anchors(count, anchors):
    mixed = [sample.sample_id for sample in among(samples(count, "rank"), samples(anchors, "anchor"))]
    for prefix, number in (("rank", count), ("anchor", anchors)):
        assert [name for name in mixed if name.startswith(prefix)] == [f"{prefix}-{index}" for index in range(number)]
