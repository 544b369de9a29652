"""The devices of a stored plan: hosts of the plan's task, and GPUs for tables in host memory."""

import json

import pytest
from conftest import ROOT, bootstrap, run_pipeline
from kedro.framework.session import KedroSession

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json

TABLES = str(ROOT / "data/01_raw/criteo_kaggle.csv")


@pytest.mark.parametrize(
    ("world_size", "local_world_size", "ranks_per_host"), [(1, None, 1), (4, None, 4), (12, 4, 4), (16, None, 8)]
)
def test_a_plan_for_modelled_gpus_is_stored_for_the_hosts_of_its_task(
    tmp_path, world_size, local_world_size, ranks_per_host
):
    """Without a number of ranks per host, only multiples of 8 ranks are on hosts of 8 GPUs."""
    task = {"tables": TABLES, "world_size": world_size, "local_world_size": local_world_size, "memory_gib": 8}
    task |= {"sharder": "size_lookup_greedy", "rivals": ["dim_greedy"]}
    params = {"data_root": str(tmp_path / "data"), "plan": {"task": task}}
    bootstrap()
    with KedroSession.create(project_path=ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["plan"])
    (path,) = (tmp_path / "data").rglob("torchrec_plan.json/*/torchrec_plan.json")
    document = json.loads(path.read_text())
    assert document["local_world_size"] == ranks_per_host
    assert f"rank:{world_size - 1}/cuda:{ranks_per_host - 1}" in json.dumps(document["plan"])
    assert plan_from_json(document).task.ranks_per_host == ranks_per_host


def test_tables_in_host_memory_need_a_plan_for_gpus(finished_run):
    task = {"tables": TABLES, "host_memory_gib": 1, "sharder": "size_lookup_greedy"}
    with pytest.raises(
        PlanError, match=r"host memory only if GPUs .*search\.torchrec\.compute_device.* set it to cuda"
    ):
        run_pipeline(finished_run, "plan", params={"plan": {"task": task}})
    for_gpus = {"plan": {"task": task}, "search": {"torchrec": {"compute_device": "cuda"}}}
    run_pipeline(finished_run, "plan", params=for_gpus)
    path = sorted((finished_run / "07_model_output").rglob("torchrec_plan.json/*/torchrec_plan.json"))[-1]
    assert json.loads(path.read_text())["compute_device"] == "cuda"
