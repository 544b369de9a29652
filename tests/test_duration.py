"""The announced duration of a run."""

import subprocess
import sys
from pathlib import Path

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline import duration, hooks

ROOT = Path(__file__).parents[1]


def conf_with(folder: Path, **texts: str) -> Path:
    """A configuration folder with one parameter file per environment."""
    for environment, text in texts.items():
        (folder / environment).mkdir()
        (folder / environment / "parameters.yml").write_text(text)
    return folder


def test_seconds_are_those_of_the_environment_or_of_base(tmp_path: Path) -> None:
    conf = conf_with(
        tmp_path,
        base="a: 1\nexpected_seconds: {installation: 10, measure: 20.5}\nbudgeted_seconds: {measure: 30}\n",
        longer="expected_seconds: {installation: 10, measure: 200}\nbudgeted_seconds: null\n",
        unknown="expected_seconds: null # not known\n",
        silent="a: 2\n",
    )
    assert duration.seconds_of_stages("base", conf=conf) == {"installation": 10, "measure": 20.5}
    assert duration.seconds_of_stages("base", "budgeted_seconds", conf) == {"measure": 30}
    assert duration.seconds_of_stages("longer", conf=conf) == {"installation": 10, "measure": 200}
    assert duration.seconds_of_stages("longer", "budgeted_seconds", conf) == {}
    assert duration.seconds_of_stages("unknown", conf=conf) == {}
    assert duration.seconds_of_stages("silent", conf=conf) == {"installation": 10, "measure": 20.5}


def test_base_and_thorough_state_every_stage() -> None:
    base, thorough = map(duration.seconds_of_stages, ("base", "thorough"))
    assert set(base) == set(thorough) == {"installation", "augment", "measure", "train", "search"}
    assert all(base[stage] <= thorough[stage] for stage in base)
    budgeted = duration.seconds_of_stages("base", "budgeted_seconds")
    assert all(base[stage] < seconds for stage, seconds in budgeted.items())
    assert duration.seconds_of_stages("thorough", "budgeted_seconds") == {}


@pytest.mark.parametrize(("seconds", "slowdown", "minutes"), [(50, 1, 1), (60, 1, 1.5), (100, 2, 4), (0, 3, 0)])
def test_estimates_are_rounded_up_to_half_minutes(seconds: float, slowdown: float, minutes: float) -> None:
    assert duration.estimate_minutes({"train": seconds}, {}, slowdown) == minutes


@pytest.mark.parametrize(("slowdown", "seconds"), [(1, 300), (1.5, 450), (2, 500), (3, 500), (4, 600)])
def test_time_budgets_limit_a_stage_but_not_below_half_of_its_full_time(slowdown: float, seconds: float) -> None:
    unlimited = duration.estimate_minutes({"measure": seconds}, {}, 1)
    assert duration.estimate_minutes({"measure": 300}, {"measure": 500}, slowdown) == unlimited


def test_the_first_line_needs_no_installed_package() -> None:
    """`make run` prints the line before it installs anything: -I and -S hide every installed package."""
    command = [sys.executable, "-I", "-S", "src/neuroshard_pipeline/duration.py", "base"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("make run takes about ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(("changed", "announced"), [({}, True), ({"plan": {}}, True), ({"search": {"a": 1}}, False)])
def test_a_run_announces_only_stages_that_the_command_line_does_not_change(
    changed: dict[str, dict[str, object]],
    announced: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probe of the machine, which another test runs, is left out."""
    monkeypatch.setattr(hooks, "slowdown", lambda: 1.0)
    catalog = DataCatalog({"parameters": MemoryDataset({"expected_seconds": {"search": 100}})})
    pipeline = Pipeline([Node(sorted, "found", "read", name="search.read", tags="search")])
    with caplog.at_level("INFO"):
        hooks.ProgressHooks().before_pipeline_run({"runtime_params": changed}, pipeline, catalog)
    assert ("this run takes about" in caplog.text) == announced
