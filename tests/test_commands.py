"""The commands of `neuroshard-pipeline`, outside a checkout."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from neuroshard_pipeline.commands import commands

HEADER = "table,num_embeddings,embedding_dim,pooling_factor\n"
FILE = f"{HEADER}a,1000000,64,20\nb,50000,32,2\n"
TASK = ["--batch-size", "4096"]


def run(*arguments):
    return CliRunner().invoke(commands, [*map(str, arguments)])


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text(FILE)
    return path


@pytest.mark.usefixtures("tables")
def test_a_command_in_an_empty_folder_prints_a_table_writes_a_page_and_needs_no_kedro(tmp_path):
    code = (
        "import sys; sys.argv[1:] = 'plan tables.csv --ranks 2 --batch-size 4096 --html p.html'.split()\n"
        "import atexit; atexit.register(lambda: print('kedro', 'kedro' in sys.modules))\n"
        "from neuroshard_pipeline.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout
    assert "kedro False" in done.stdout
    assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")
    assert {path.name for path in tmp_path.iterdir()} == {"tables.csv", "p.html"}


def test_a_plan_is_written_and_replanned_when_a_table_is_added(tmp_path, tables):
    found = run("plan", tables, "--ranks", "2", "--workers", "1", "--out", tmp_path / "plan.json", *TASK)
    assert found.exit_code == 0, found.output
    tables.write_text(f"{FILE}c,4000000,64,20\n")
    next_plan, page = tmp_path / "next.json", tmp_path / "page.html"
    options = ["--ranks", "2", "--out", next_plan, "--html", page, *TASK]
    found = run("replan", tables, tmp_path / "plan.json", *options)
    assert found.exit_code == 0, found.output
    assert "'c'" in found.output
    assert "Take " in found.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    documents = [json.loads(path.read_text()) for path in (tmp_path / "plan.json", next_plan)]
    names = [{table["name"] for table in document["task"]["tables"]} for document in documents]
    assert names == [{"a", "b"}, {"a", "b", "c"}]


def test_advice_names_settings(tables):
    tables.write_text(f"{HEADER}a,1000,4,1\n")
    found = run("advise", tables, "--ranks", "2", "--models", "h100", *TASK)
    assert found.exit_code == 0, found.output
    assert "qcomm_codecs_registry" in found.output


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["plan", "--ranks", "1", "--memory-gib", "0.2"], 1, "does not fit"),
        (["plan", "--ranks", "eight"], 2, "must be numbers"),
        (["plan", "--gpus", "h10"], 1, "did you mean 'h100'"),
        (["plan", "--ranks", "2", "--workers", "1", "--out", "nowhere/plan.json"], 1, "name a file in a folder"),
        (["replan", "none.json"], 1, "none.json"),
        (["advise", "--models", "data/06_models"], 1, "add --memory-gib"),
    ],
)
def test_a_command_says_what_is_wrong(tables, arguments, status, words):
    command, *options = arguments
    result = run(command, tables, *options)
    assert result.exit_code == status
    assert words in result.output
