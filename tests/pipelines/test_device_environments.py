"""A small synthetic recording, the environments of the modelled GPUs, and `--env cuda` without a device."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT, bootstrap
from kedro.framework.session import KedroSession
from measurement.stand_in import write_stand_in

from neuroshard_pipeline.cli import explain
from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.evaluation.totals import PREDICTED_COLUMNS, plan_totals
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.pipelines.preflight import PreflightError

#: The GPU that the lab models, by environment.
LAB = {"a100": "a100-80gb", "h100": "h100", "h200": "h200"}


def run(env: str, data_root: Path, changes: dict, *names: str) -> None:
    """Run an environment at the test environment's scale, with changed parameters."""
    bootstrap()
    scale = yaml.safe_load((ROOT / "conf/test/parameters.yml").read_text())
    params = {stage: scale[stage] for stage in ("augment", "train", "search")} | {"data_root": str(data_root)}
    with KedroSession.create(project_path=ROOT, env=env, runtime_params=merged(params, changes)) as session:
        session.run(pipeline_names=list(names))


def merged(first: dict, second: dict) -> dict:
    """Nested parameters; those of `second` replace those of `first`."""
    both = {
        key: merged(first[key], second[key]) for key in first.keys() & second.keys() if isinstance(first[key], dict)
    }
    return first | second | both


def from_recording(folder: Path) -> dict:
    """Parameters of a run whose compute costs are recorded and whose communication costs are modelled."""
    return {
        "recording": {"folder": str(folder)},
        "measure": {"compute": {"backend": "recorded"}, "comm": {"backend": "topology"}},
        "search": {"steps": {"judge": "none"}, "contest": {"sharders": ["lookup_greedy", "neuroshard"]}},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a stand-in recording and the data of a full run on it."""
    folder = tmp_path_factory.mktemp("recorded")
    write_stand_in(folder / "recording", num_tables=60, num_samples=60, batch_size=64)
    run("base", folder / "data", from_recording(folder / "recording"))
    return folder


@pytest.mark.parametrize("env", LAB)
def test_the_ranks_per_host_of_an_environment_are_those_of_its_network(env):
    values = yaml.safe_load((ROOT / f"conf/{env}/globals.yml").read_text())
    assert values["local_world_size"] == network_preset(values["network"]).gpus_per_host


def newest(finished: Path, name: str) -> Path:
    return sorted((finished / "data" / name).iterdir())[-1] / Path(name).name


def frame(finished: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(newest(finished, f"{name}.parquet"))


def hardware(finished: Path) -> dict:
    return json.loads(newest(finished, "04_feature/hardware.json").read_text())


@pytest.mark.parametrize(
    ("written", "recorded"),
    [
        ("02_intermediate/table_pool", "table_pool"),
        ("03_primary/compute_samples", "compute_samples"),
        ("04_feature/compute_costs", "compute_costs"),
    ],
)
def test_pool_samples_and_costs_are_those_of_the_recording(finished, written, recorded):
    expected = pd.read_parquet(finished / "recording" / f"{recorded}.parquet")
    pd.testing.assert_frame_equal(frame(finished, written), expected)


def test_the_hardware_is_the_recorded_one_and_labels_modelled_costs(finished):
    facts = hardware(finished)
    assert facts["gpu_model"] == "stand-in for a GPU"
    assert facts["recording"]["stand_in"] is True
    assert facts["comm_costs_are"] == "modelled"
    assert facts["noise_floor"]["compute"]["total"]["median"] == 0.01
    assert facts["noise_floor"]["comm"]["total"]["median"] is None


def test_the_report_labels_recorded_and_modelled_costs(finished):
    page = newest(finished, "08_reporting/report.html").read_text()
    for word in ("topology", "stand-in for a GPU", "No plan was measured"):
        assert word in page


def test_plans_are_predicted(finished):
    costs = frame(finished, "07_model_output/plan_costs")
    assert costs[[*PREDICTED_COLUMNS[:3], "predicted_step_ms"]].notna().all(axis=None)
    assert costs["measured_step_ms"].isna().all()


def test_steps_on_this_machine_do_not_judge_plans_for_another_device(finished):
    changes = {"search": {"steps": {"judge": "torchrec"}}}
    with pytest.raises(PreflightError, match="predicts costs on 'cuda', but the tables are to be trained on 'cpu'"):
        run("base", finished / "data", merged(from_recording(finished / "recording"), changes), "search")


def test_nothing_was_measured(finished):
    assert not list((finished / "data/04_feature").glob("*_shards/**/*.parquet"))


def test_without_measured_lookups_there_is_no_step_cost_model(finished):
    assert load_cost_models(finished / "data/06_models").step is None
    assert frame(finished, "04_feature/step_costs").empty


@pytest.fixture(scope="module")
def modelled(tmp_path_factory) -> Path:
    """A folder with the data of a full run on a modelled GPU."""
    folder = tmp_path_factory.mktemp("modelled")
    run("h100", folder / "data", {"search": {"contest": {"sharders": ["lookup_greedy", "neuroshard"]}}})
    return folder


def test_a_run_on_a_modelled_gpu_labels_all_costs_as_modelled(modelled):
    facts = hardware(modelled)
    assert facts["gpu_model"] == "h100 (modelled)"
    assert facts["comm_costs_are"] == "modelled"
    assert "recording" not in facts
    page = newest(modelled, "08_reporting/report.html").read_text()
    for word in ("h100 (modelled)", "modelled by the lab"):
        assert word in page


def test_on_a_modelled_gpu_every_sample_and_every_plan_has_a_modelled_cost(modelled):
    costs = frame(modelled, "04_feature/compute_costs")
    assert set(costs["sample_id"]) == set(frame(modelled, "03_primary/compute_samples")["sample_id"])
    assert costs["error"].isna().all()
    assert costs[["forward_ms", "backward_ms"]].gt(0).all(axis=None)
    assert plan_totals(frame(modelled, "07_model_output/plan_costs"))["measured_step_ms"].notna().all()


def test_the_step_cost_model_of_a_modelled_gpu_is_modelled(modelled):
    step = load_cost_models(modelled / "data/06_models").step
    assert step.provenance["costs_are"] == {"prices": "modelled", "reductions": "modelled"}
    assert sorted(step.prices) == [2, 16]


def test_on_a_modelled_gpu_nothing_is_measured(modelled):
    assert frame(modelled, "04_feature/step_costs").empty
    assert not list((modelled / "data/04_feature").glob("*_shards/**/*.parquet"))


def refusal(env: str, data_root: Path, changes: dict) -> str | None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - `explain` must accept any type
        run(env, data_root, changes, "pretrain")
    return explain(caught.value)


def test_without_a_recording_the_message_explains_how_to_make_one_and_no_data_is_written(tmp_path):
    message = refusal("base", tmp_path / "data", from_recording(tmp_path / "no_recording"))
    assert message is not None
    for word in (str(tmp_path / "no_recording"), "card.json", "make gpu-campaign"):
        assert word in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_cuda_environment_names_the_alternatives(tmp_path):
    message = refusal("cuda", tmp_path, {})
    assert message is not None
    assert "measure.compute.backend='fbgemm_cuda' (conf/cuda/parameters.yml)" in message
    assert "no CUDA device" in message
    assert "use fbgemm_cpu, recorded or modelled" in message


@pytest.mark.parametrize(("env", "backend"), [("cuda", "fbgemm_cuda"), *((env, "modelled") for env in LAB)])
def test_full_scale_parameters_are_complete_and_valid(env, backend):
    bootstrap()
    with KedroSession.create(project_path=ROOT, env=env) as session:
        params = session.load_context().params
    tasks = params["augment"]["sharding_tasks"]
    samples, collectives = params["measure"]["compute"], params["measure"]["comm"]  # objects that Kedro has validated
    assert samples.backend == backend
    assert samples.arena_bytes > tasks.memory_bytes or backend == "modelled"
    assert collectives.backend == "topology"
    for stage in ("search", "truth", "benchmark"):
        steps = params[stage]["steps"]
        assert (steps.judge, steps.backend) == (("lab", "gloo") if backend == "modelled" else ("torchrec", "nccl"))
    drawn = ("pool", "compute_samples", "comm_samples", "mlperf_task")
    assert {params["augment"][name].batch_size for name in drawn} == {tasks.batch_size}


@pytest.mark.parametrize("env", LAB)
def test_every_environment_of_a_modelled_gpu_names_its_gpu(env):
    bootstrap()
    with KedroSession.create(project_path=ROOT, env=env) as session:
        params = session.load_context().params
    assert params["recording"].folder is None
    assert params["recording"].modelled_device == LAB[env]
    modelled_device(LAB[env])  # the lab has this GPU, or else an error is raised
    assert params["augment"]["compute_samples"].memory_bytes == params["augment"]["sharding_tasks"].memory_bytes
