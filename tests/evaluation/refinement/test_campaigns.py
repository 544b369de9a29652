import dataclasses

import pandas as pd
import pytest

from evaluation.refinement.made_up import campaigns
from evaluation.refinement.test_judging import PARAMS
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.evaluation.refinement import require_measuring
from neuroshard_pipeline.evaluation.refinement.predictions import predictions


def test_a_backend_that_measures_nothing_is_refused_with_those_that_do():
    with pytest.raises(MeasurementError, match=r"'recorded' measures nothing.*fbgemm_cpu or fbgemm_cuda"):
        require_measuring("recorded")
    require_measuring("fbgemm_cpu")


def test_both_kinds_of_samples_come_back_with_the_costs_of_the_first_campaign(first):
    compute, comm = first.compute()[:5], first.comm()[:3]
    new = [sample.sample_id for sample in (*compute, *comm)]
    kept = [costs[~costs["sample_id"].isin(new)] for costs in (first.compute_costs, first.comm_costs)]
    others = dataclasses.replace(first, compute_costs=kept[0], comm_costs=kept[1])
    measured = campaigns(others, slowdown=1.25).both(compute, comm, PARAMS).as_at_first()
    for kind, samples in (("compute", compute), ("comm", comm)):
        costs = getattr(measured, f"{kind}_costs")
        known = getattr(first, f"{kind}_costs").set_index("sample_id").loc[costs["sample_id"].unique()]
        assert costs["sample_id"].unique().tolist() == [sample.sample_id for sample in samples]
        assert costs["forward_ms"].to_numpy() == pytest.approx(known["forward_ms"].to_numpy(), rel=1e-6)
        assert costs["backward_ms"].to_numpy() == pytest.approx(known["backward_ms"].to_numpy(), rel=1e-6)


def test_samples_that_all_fail_are_an_error_with_their_reason(first, trained):
    failed = dataclasses.replace(
        first,
        compute_costs=first.compute_costs.assign(forward_ms=float("nan"), error="out of memory: arena"),
        comm_samples=first.comm_samples.head(0),
        comm_costs=first.comm_costs.head(0),
    )
    with pytest.raises(MeasurementError, match=r"none of the samples .* out of memory: arena"):
        predictions(trained.models, failed)
    assert isinstance(predictions(trained.models, first), pd.DataFrame)
