"""A run that cannot succeed is refused before its first node, with all problems in one message."""

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from conftest import ROOT, bootstrap, run_pipeline
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession

from neuroshard_pipeline.cli import cli, explain
from neuroshard_pipeline.pipelines.preflight import measuring, problems_of
from neuroshard_pipeline.pipelines.preflight.run import PlannedRun

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def problems(
    data_root: Path, name: str, params: dict | None = None, env: str = "test", nodes: list[str] | None = None
) -> list[str]:
    """What the checks find before a run; `nodes` selects some nodes, as `--nodes` does."""
    return problems_by_pipeline(data_root, [name], params, env, nodes)[name]


def problems_by_pipeline(
    data_root: Path, names: list[str], params: dict | None = None, env: str = "test", nodes: list[str] | None = None
) -> dict[str, list[str]]:
    """As `problems`, of several pipelines with the same parameters."""
    bootstrap()
    given = {"data_root": str(data_root), **(params or {})}
    record = {"env": env, "runtime_params": given, "project_path": str(ROOT)}
    with KedroSession.create(project_path=ROOT, env=env, runtime_params=given) as session:
        catalog = session.load_context().catalog
        return {
            name: problems_of(PlannedRun(pipelines[name].filter(node_names=nodes), catalog, record)) for name in names
        }


def test_a_good_run_has_no_problems(finished_run):
    names = ["__default__", "pretrain", "measure", "train", "search", "plan", "train_check", "train_policies"]
    assert problems_by_pipeline(finished_run, names) == {name: [] for name in names}


@NO_GPU
def test_a_missing_gpu_is_named_with_the_file_that_asks_for_it(tmp_path):
    found = problems(tmp_path, "__default__", env="cuda")
    assert any("measure.compute.backend='fbgemm_cuda' (conf/cuda/parameters.yml)" in problem for problem in found)
    assert any("no CUDA device" in problem and "use fbgemm_cpu, recorded or modelled" in problem for problem in found)


@NO_GPU
def test_only_the_nodes_that_run_are_checked(finished_run):
    broken = {"measure": {"compute": {"backend": "fbgemm_cuda"}, "comm": {"backend": "nccl"}}}
    assert problems(finished_run, "train", broken) == []
    assert problems(finished_run, "measure", broken, nodes=["measure.reduce_comm_costs"]) == []
    found = problems(finished_run, "measure", broken, nodes=["measure.measure_comm"])
    assert found
    assert all("measure.comm.backend='nccl' (--params)" in problem for problem in found)


@NO_GPU
def test_pipelines_that_measure_or_train_check_their_devices(finished_run):
    settings = {"search": "steps", "train_check": "training", "truth": "steps"}
    params = {name: {group: {"backend": "nccl"}} for name, group in settings.items()}
    found = problems_by_pipeline(finished_run, list(settings), params)
    for name, group in settings.items():
        setting = f"{name}.{group}.backend='nccl'"
        assert any(setting in problem and "no CUDA device" in problem for problem in found[name]), name
    other_device = "predicts costs on 'cpu', but the tables are to be trained on 'cuda'"
    assert any(other_device in problem for problem in found["train_check"])


def test_tables_that_train_check_cannot_hold_are_refused(finished_run):
    task = {"memory_gib": 0.004, "row_scale": 4096}
    (problem,) = problems(finished_run, "train_check", {"train_check": {"task": task}})
    assert "the tables need" in problem
    assert "are missing" in problem
    for changes in ({"memory_gib": 1e-5}, {"memory_gib": 1e-5, "task_id": "2-ranks-000"}):
        (problem,) = problems(finished_run, "train_check", {"train_check": {"task": changes}})
        assert "the dense network of" in problem


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"compute": {"arena_bytes": 2**45}}, ["measure.compute.arena_bytes=35184372088832 (--params)", "all arenas"]),
        ({"compute": {"arena_bytes": 2**22}}, ["arena_bytes=4194304", "samples may have 16777216 bytes of weights"]),
        ({"comm": {"buffer_bytes": 2**45}}, ["measure.comm.buffer_bytes", "all buffers (ranks: 2)", "left; lower"]),
    ],
)
def test_an_arena_or_buffer_that_is_too_large_or_too_small_is_refused(tmp_path, params, words):
    (problem,) = problems(tmp_path, "pretrain", {"measure": params})
    for word in words:
        assert word in problem


def test_a_missing_extra_is_named_with_what_needs_it(finished_run, monkeypatch):
    monkeypatch.setitem(measuring.EXTRAS, "torchrec", "a_module_that_nobody_has")
    monkeypatch.setitem(measuring.EXTRAS, "cluster", "a_module_that_nobody_has")
    (problem,) = problems(finished_run, "plan", {"plan": {"task": {"sharder": "torchrec"}}})
    assert problem.startswith("parameter plan.task.sharder='torchrec' (--params) needs a_module_that_nobody_has")
    assert problem.endswith("install the extra [torchrec] as the docs describe")
    found = problems(finished_run, "measure", {"measure": {"compute": {"engine": "ray"}}})
    assert len(found) == 2
    assert any("measure.compute.engine='ray'" in problem for problem in found)
    assert any("measure.step_plans.tasks=2" in problem and "0: no step cost model" in problem for problem in found)
    others = problems_by_pipeline(
        finished_run, ["measure", "train_check", "truth"], {"measure": {"step_plans": {"tasks": 0}}}
    )
    assert [len(of) for of in others.values()] == [0, 2, 2]  # 2: the pipeline and its sharder


def test_a_sharder_without_its_policy_is_refused(finished_run):
    sharders = {"sharders": ["neuroshard", "dreamshard"]}
    (problem,) = problems(finished_run, "search", {"search": {"contest": sharders}})
    assert "train_policies" in problem


def test_a_benchmark_needs_policies_only_of_the_learned_sharders_in_its_contest(finished_run, tmp_path):
    (tmp_path / "06_models").mkdir()
    for model in ("compute_cost_model", "comm_cost_model"):
        (tmp_path / "06_models" / model).symlink_to(finished_run / "06_models" / model)
    for sharders in (["lookup_greedy", "neuroshard"], ["dreamshard", "neuroshard"]):
        contest = {"benchmark": {"contest": {"sharders": sharders}, "suites": {"names": ["paper_4"]}}}
        found = problems(tmp_path, "benchmark", contest)
        learned = [name for name in sharders if name == "dreamshard"]
        assert len(found) == len(learned)
        assert all("dreamshard" in each and "autoshard" not in each for each in found)
        assert all(
            f"run `kedro run --env test --pipeline train_policies --params data_root={tmp_path}`" in each
            for each in found
        )


def test_all_input_files_are_checked_at_once(finished_run, tmp_path):
    (tmp_path / "links.csv").write_text("1,x\n3,1\n")
    (tmp_path / "constraints.yml").write_text("tables: {a: {pin: [0]}}")
    files = {"constraints": str(tmp_path / "constraints.yml"), "links": str(tmp_path / "links.csv")}
    params = {"plan": {"task": {"tables": "nowhere.csv", "world_size": 2} | files}}
    found = problems(finished_run, "plan", params)
    assert [any(name in problem for problem in found) for name in ("nowhere.csv", "constraints.yml", "links.csv")]
    assert len(found) == 3


@pytest.mark.parametrize(
    ("name", "params", "word"),
    [
        ("augment", {"augment": {"pool": {"dlrm_dataset": "no.pt"}}}, "augment.pool.dlrm_dataset='no.pt' (--params)"),
        ("augment", {"recording": {"folder": "nowhere"}}, "the recording nowhere lacks table_pool.parquet"),
        ("measure", {"measure": {"compute": {"backend": "recorded"}}}, "backend recorded needs recording.folder"),
        ("measure", {"measure": {"compute": {"backend": "modelled"}}}, "needs recording.modelled_device"),
        ("train_check", {"train_check": {"task": {"criteo_file": "day_9"}}}, "train_check.task.criteo_file='day_9'"),
        ("train_check", {"train_check": {"task": {"tables": "no.csv"}}}, "no.csv: no such file"),
    ],
)
def test_a_missing_file_or_an_unusable_backend_is_refused(finished_run, name, params, word):
    (problem,) = problems(finished_run, name, params)
    assert word in problem


def test_suites_of_the_user_are_read(finished_run):
    found = problems(finished_run, "benchmark", {"benchmark": {"suites": {"user": {"mine": "no_suite.csv"}}}})
    assert any("no_suite.csv: no such file" in problem for problem in found)


def test_inputs_that_no_run_has_made_are_listed_with_the_pipeline_that_makes_them(tmp_path):
    (problem,) = problems(tmp_path, "plan")
    assert problem.startswith("train.comm_cost_model, train.compute_cost_model: no version in ")
    assert problem.endswith(f"run `kedro run --env test --pipeline pretrain --params data_root={tmp_path}` first")


def test_results_that_are_not_stored_are_listed_with_the_node_that_makes_them(finished_run):
    found = problems(finished_run, "search", nodes=["search.reduce_steps"])
    assert found == [
        "search.solved_plans is not stored between runs; start the run at an earlier node, with "
        "--from-nodes search.solve_tasks"
    ]


def test_a_damaged_cost_model_is_named(finished_run, tmp_path):
    shutil.copytree(finished_run / "06_models", tmp_path / "06_models")
    newest = sorted((tmp_path / "06_models/compute_cost_model").iterdir())[-1]
    (newest / "compute_cost_model/weights.safetensors").write_bytes(b"damaged")
    (problem,) = problems(tmp_path, "plan")
    assert "train.compute_cost_model" in problem
    assert "checksum" in problem


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    found = problems(tmp_path / "file", "augment")
    assert len(found) == 1
    assert f"{tmp_path / 'file'} cannot be written (Not a directory)" in found[0]


def test_several_problems_make_one_error(tmp_path):
    broken = {"measure": {"compute": {"arena_bytes": 2**45}, "comm": {"buffer_bytes": 2**45}}}
    with pytest.raises(Exception, match="this run cannot succeed, for 2 reasons") as caught:
        run_pipeline(tmp_path, "pretrain", params=broken)
    assert explain(caught.value) == str(caught.value)
    assert len(str(caught.value).splitlines()) == 3
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_command_refuses_before_its_first_node(tmp_path):
    params = f"plan.task.tables=nowhere.csv,data_root={tmp_path / 'data'}"
    done = CliRunner().invoke(cli, ["run", "--env", "test", "--pipeline", "plan", "--params", params])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), "a message, not a traceback"
    assert "nowhere.csv" in done.output
    assert not list(tmp_path.rglob("*.parquet"))
