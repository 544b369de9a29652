"""Wrong input is refused with a message that names it, before any plan or result is written."""

import json
from pathlib import Path

import pytest
import warm
from click.testing import CliRunner
from conftest import run_pipeline
from omegaconf import OmegaConf
from pipelines.bad_parameters import BAD_ALONE, refused_together

from neuroshard_pipeline.cli import cli, explain

MODEL = "train.compute_cost_model"


def refusal(data_root: Path, *names: str, **kwargs) -> str:
    """The message that the command line prints for a run that must fail."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - `explain` must accept any type
        run_pipeline(data_root, *names, **kwargs)
    message = explain(caught.value)
    assert message is not None, f"a defect, not a refusal: {caught.value!r}"
    return message


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def unused(tmp_path_factory) -> Path:
    """A folder that no refused run may write to; runs with one data root share the catalog that a test resolves."""
    return tmp_path_factory.mktemp("unused")


@pytest.mark.parametrize(("params", "messages"), refused_together(), ids=lambda value: str(value)[:60])
def test_every_bad_value_is_named_with_its_parameter_in_one_line(unused, params, messages):
    lines = refusal(unused, params=params).splitlines()
    assert len(lines) == len(messages)
    for words in messages:
        assert sum(all(word in line for word in words) for line in lines) == 1, words
    assert files_below(unused) == []


@pytest.mark.parametrize(("params", "words"), BAD_ALONE, ids=lambda value: str(value)[:60])
def test_any_other_bad_parameter_is_named_in_one_line(unused, params, words):
    message = refusal(unused, params=params)
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message
    assert files_below(unused) == []


def test_a_benchmark_without_policies_says_how_to_train_them(tmp_path, finished_run):
    (tmp_path / "06_models").mkdir()
    for model in ("compute_cost_model", "comm_cost_model"):
        (tmp_path / "06_models" / model).symlink_to(finished_run / "06_models" / model)
    assert "kedro run --env test --pipeline train_policies" in refusal(tmp_path, "benchmark")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["tasks.csv", "no such file"]),
        ("task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim\n", ["tasks.csv", "no tables"]),
        (
            "task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim,pooling_factor\n"
            "one,2,64,1000000,a,100,6,1\n",
            ["tasks.csv", "line 2", "multiple of 4"],
        ),
    ],
    ids=["missing", "empty", "width"],
)
def test_a_bad_suite_of_a_user_is_refused(finished_run, tmp_path, content, words):
    path = tmp_path / "tasks.csv"
    if content is not None:
        path.write_text(content)
    if not (finished_run / "06_models/dreamshard_policy").exists():
        run_pipeline(finished_run, "train_policies")
    message = refusal(finished_run, "benchmark", params={"benchmark": {"suites": {"user": {"mine": str(path)}}}})
    for word in words:
        assert word in message


def test_a_search_without_models_says_how_to_make_them(tmp_path):
    message = refusal(tmp_path, "search")
    assert "kedro run --env test --pipeline pretrain" in message
    assert files_below(tmp_path) == []


def test_a_pinned_version_that_is_missing_is_named_beside_those_that_exist(finished_run):
    message = refusal(finished_run, "search", load_versions={MODEL: "2001-01-01T00.00.00.000Z"})
    existing = sorted((finished_run / "06_models/compute_cost_model").iterdir())[-1].name
    assert "2001-01-01T00.00.00.000Z" in message
    assert existing in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["tables.csv"]),
        ("table,num_embeddings,embedding_dim,pooling_factor\na,10,6,1\n", ["tables.csv", "6", "4"]),
        ("table,num_embeddings,embedding_dim,pooling_factor\na,10,8,1\na,10,8,1\n", ["tables.csv", "'a'"]),
        ("table,num_embeddings,embedding_dim,pooling_factor\na,-1,8,1\n", ["tables.csv", "-1"]),
        ("table,num_embeddings,pooling_factor\na,10,1\n", ["tables.csv", "embedding_dim"]),
        ("table,num_embeddings,embedding_dim,pooling_factor\na,9000000000,64,1\n", ["2304000000000 bytes", "rank"]),
        ("table,num_embeddings,embedding_dim,pooling_factor\nitems,10,8,1\n", ["tables: ", "'items'", "rename"]),
        (
            "table,num_embeddings,embedding_dim,pooling_factor,pooling\na,10,8,1,none\nb,10,4,1,none\n",
            ["tables: ", "'a'", "8 columns", "'b'", "4 columns", "'module'"],
        ),
    ],
    ids=["missing", "width", "duplicate", "negative", "column", "no room", "name", "modules"],
)
def test_a_bad_table_file_is_refused_and_nothing_is_planned(finished_run, tmp_path, content, words):
    path = tmp_path / "tables.csv"
    if content is not None:
        path.write_text(content)
    before = files_below(finished_run / "07_model_output")
    message = refusal(finished_run, "plan", params={"plan": {"task": {"tables": str(path)}}})
    for word in words:
        assert word in message
    assert files_below(finished_run / "07_model_output") == before


def test_bad_constraints_are_refused_and_nothing_is_planned(finished_run, tmp_path):
    path = tmp_path / "constraints.yml"
    path.write_text("tables: {nobody: {ranks: [0]}}")
    before = files_below(finished_run / "07_model_output")
    message = refusal(finished_run, "plan", params={"plan": {"task": {"constraints": str(path)}}})
    assert "'nobody'" in message
    path.write_text("tables: {C1: {pin: [0]}}")
    message = refusal(finished_run, "plan", params={"plan": {"task": {"constraints": str(path)}}})
    assert "constraints.yml" in message
    assert "tables.C1.pin" in message
    assert files_below(finished_run / "07_model_output") == before


def test_the_lineage_of_a_failed_run_says_that_it_failed(finished_run):
    refusal(finished_run, "plan", params={"plan": {"task": {"memory_gib": 1e-6}}})
    newest = sorted((finished_run / "08_reporting/lineage").glob("*.json"))[-1]
    assert json.loads(newest.read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--env", "test", "--params", "measure.compute.visits=-3"],
            "Error: parameter measure.compute.visits=-3: must be greater than or equal to 1\n",
        ),
        (["--env", "nosuch"], "--env naming a folder below conf/"),
        (
            ["--pipeline", "plan", "--params", "measure.compute=3"],
            "Error: parameter measure.compute=3: must be a group",
        ),
        (["--pipeline", "plan", "--params", "data_root="], "Error: parameter data_root=None: must be a valid string\n"),
        (
            ["--from-nodes", "search_plan"],
            "Error: node 'search_plan' does not exist; did you mean 'plan.search_plan'?\n",
        ),
        (["--to-nodes", "qqqq"], "Error: node 'qqqq' does not exist; `kedro registry describe PIPELINE` lists"),
        (
            ["--nodes", "plan.search_plan"],
            "Error: node 'plan.search_plan' is not in the pipeline of this run; add --pip",
        ),
        (["--from-inputs", "plan.soluton"], "Error: dataset 'plan.soluton' does not exist; did you mean"),
        (["--to-outputs", "plan.explanation"], "is not in the pipeline of this run; add --pipeline plan\n"),
        (["--namespaces", "plann"], "Error: namespace 'plann' does not exist; did you mean 'plan'?\n"),
        (
            ["--tags", "qqqq"],
            "Error: no node of the pipeline meets all options (--tags, --nodes ...); tags are advise, augment",
        ),
        (["--pipeline", "pln"], "Error: pipeline 'pln' does not exist; did you mean 'plan'?"),
        (
            ["--pipeline", "plan", "--params", "plan.task.wrld_size=8"],
            "Error: parameter plan.task.wrld_size=8 does not exist; did you mean 'world_size'?\n",
        ),
    ],
)
def test_the_command_line_prints_the_problem_once_and_fails(arguments, message):
    done = CliRunner().invoke(cli, ["run", *arguments])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), "a message, not a traceback"
    assert done.output.count(message) == 1


def test_flags_may_be_written_as_words_or_numbers(finished_run, tmp_path):
    flags = {"pipelines_input_dist": "yes", "index_dedup": 1, "world_size": 2.0}
    (tmp_path / "tables.csv").write_text("table,num_embeddings,embedding_dim,pooling_factor\na,10,8,1\n")
    run_pipeline(finished_run, "plan", params={"plan": {"task": flags | {"tables": str(tmp_path / "tables.csv")}}})


def test_a_failure_inside_a_node_is_printed_once(finished_run):
    params = f"data_root={finished_run},plan.task.memory_gib=0.000001"
    done = warm.run("-m", "kedro", "run", "--env", "test", "--pipeline", "plan", "--params", params)
    assert done.returncode == 1
    assert done.stderr.count("Error: ") == 1
    assert done.stderr.count("criteo_kaggle: ") == 1
    assert "plan.search_plan" in done.stderr  # the node that failed
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["--runner", "Nonsense"], "", "--runner Nonsense: no such runner; use SequentialRunner"),
        (["--runner", "no.such.Runner"], "", "--runner no.such.Runner: no such runner"),
        ([], "plan: {task: {world_size: 2}}", "must be YAML with a section `run:`"),
        ([], "run: plan", "must be YAML with a section `run:`"),
        ([], "run: [", "must be YAML with a section `run:`"),
        ([], "", "must be YAML with a section `run:`"),
        ([], "run: {runner: Nonsense}", "--runner Nonsense: no such runner"),
    ],
)
def test_a_runner_or_a_file_of_options_that_cannot_be_used_ends_in_one_line(
    tmp_path, monkeypatch, arguments, content, message
):
    # The tests' own function, which is faster, takes no path.
    monkeypatch.setattr(OmegaConf, "load", lambda path: OmegaConf.create(Path(path).read_text()))
    if not arguments:
        arguments = ["--config", str(tmp_path / "options.yml")]
        (tmp_path / "options.yml").write_text(content)
    done = CliRunner().invoke(cli, ["run", "--params", f"data_root={tmp_path / 'data'}", *arguments])
    assert done.exit_code == 1
    assert message in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "data").exists()
