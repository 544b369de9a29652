"""The compute backend `modelled`: costs of the lab's GPUs in the columns of measured costs."""

import json

import pytest

from neuroshard_pipeline.cost_models.caveats import modelled
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.device import lookup_cost_ms, modelled_device
from neuroshard_pipeline.measurement import ComputeCampaign, RecordingParams, describe_hardware
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

SEED = 0
ON_H100 = RecordingParams(folder=None, modelled_device="h100")
SAMPLES = [
    ComputeSample("one", 4096, (whole(Table("a", 10_000, 64, 5.0)),)),
    ComputeSample("two", 4096, (whole(Table("a", 10_000, 64, 5.0)), whole(Table("b", 10**6, 32, 20.0))), "adam"),
]


@pytest.fixture
def modelled_params(compute_params):
    return compute_params(backend="modelled")


def test_costs_are_those_of_the_lab(modelled_params):
    campaign = ComputeCampaign(modelled_params, SEED, ON_H100)
    assert list(campaign.run(SAMPLES, {})) == []
    costs = campaign.measure(SAMPLES).set_index("sample_id")
    for sample in SAMPLES:
        expected = lookup_cost_ms(sample.shards, sample.batch_size, sample.optimizer, modelled_device("h100"))
        assert tuple(costs.loc[sample.sample_id, ["forward_ms", "backward_ms"]]) == expected
    assert costs["error"].isna().all()
    assert (costs["repeats"] == 0).all()


def test_no_samples_have_no_costs(modelled_params):
    frame = ComputeCampaign(modelled_params, SEED, ON_H100).measure([])
    assert list(frame) == ["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"]
    assert frame.empty


def test_hardware_and_report_say_that_costs_are_modelled(modelled_params, comm_params):
    summary = ComputeCampaign(modelled_params, SEED, ON_H100).summary({}, SAMPLES)
    described = json.loads(json.dumps(describe_hardware(modelled_params, comm_params(), summary, summary, ON_H100)))
    assert summary.date is None
    assert described["other_programs"]["compute"] is None
    assert modelled_params.costs_are == "modelled"
    assert described["device"] == "cuda"
    assert described["gpu_model"] == "h100 (modelled)"
    assert described["modelled_device"]["device"]["hbm_gb_per_s"] == 3350
    assert any("compute costs come from a formula" in told for told in modelled(described, None))


@pytest.mark.parametrize("nothing", [None, RecordingParams(folder=None, modelled_device=None)])
def test_a_missing_name_is_an_error_with_a_remedy(modelled_params, nothing):
    with pytest.raises(MeasurementError, match=r"recording\.modelled_device.*one of v100, a100"):
        ComputeCampaign(modelled_params, SEED, nothing).measure(SAMPLES)


def test_an_unknown_name_is_an_error_with_a_suggestion(modelled_params):
    unknown = RecordingParams(folder=None, modelled_device="h1000")
    with pytest.raises(MeasurementError, match="did you mean 'h100'"):
        ComputeCampaign(modelled_params, SEED, unknown).measure(SAMPLES)
