"""The announced duration of a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from neuroshard_pipeline import duration

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
        base="a: 1\nexpected_seconds: {installation: 10, measure: 20.5}\n",
        longer="expected_seconds: {installation: 10, measure: 200}\n",
        unknown="expected_seconds: null # not known\n",
        silent="a: 2\n",
    )
    assert duration.reference_seconds("base", conf=conf) == 30.5
    assert duration.reference_seconds("longer", ["measure"], conf) == 200
    assert duration.reference_seconds("unknown", conf=conf) == 0
    assert duration.reference_seconds("silent", conf=conf) == 30.5


def test_base_and_thorough_state_every_stage() -> None:
    for environment in ("base", "thorough"):
        for stage in ("installation", "augment", "measure", "train", "search"):
            assert duration.reference_seconds(environment, [stage]) > 0
    assert duration.reference_seconds("thorough") > duration.reference_seconds("base")


@pytest.mark.parametrize(("seconds", "slowdown", "minutes"), [(50, 1, 1), (60, 1, 1.5), (100, 2, 4), (0, 3, 0)])
def test_estimates_are_rounded_up_to_half_minutes(seconds: float, slowdown: float, minutes: float) -> None:
    assert duration.estimate_minutes(seconds, slowdown) == minutes


def test_the_first_line_needs_no_installed_package() -> None:
    """`make run` prints the line before it installs anything: -I and -S hide every installed package."""
    command = [sys.executable, "-I", "-S", "src/neuroshard_pipeline/duration.py", "base"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("make run takes about ")
    assert printed.count("\n") == 1
