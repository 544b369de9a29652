"""The scripts explain their arguments and what they lack, without a traceback."""

from __future__ import annotations

import runpy
import sys

import pytest
from conftest import ROOT


def ending(monkeypatch, capsys, *arguments) -> tuple[object, str]:
    """The exit code of a script, which is a message or a number, and what the script has printed."""
    script, *rest = arguments
    monkeypatch.setattr(sys, "argv", [script, *rest])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    return ended.value.code, "".join(capsys.readouterr())


@pytest.mark.parametrize("script", ["ship_models.py", "ship_step_models.py", "parameter_reference.py"])
def test_scripts_explain_their_arguments(monkeypatch, capsys, script):
    code, printed = ending(monkeypatch, capsys, script, "--help")
    assert code == 0
    assert printed.startswith(f"usage: {script}")
    code, printed = ending(monkeypatch, capsys, script)
    assert code == 2
    assert "required" in printed


@pytest.mark.parametrize("script", ["ship_models.py", "ship_step_models.py"])
def test_unknown_names_are_refused_with_the_known_ones(monkeypatch, capsys, script):
    code, printed = ending(monkeypatch, capsys, script, "h999")
    assert code == 2
    assert "h999" in printed
    assert all(name in printed for name in ("a100", "h100", "h200"))


def test_the_reference_of_parameters_names_the_extra_that_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "griffe", None)  # as if it were not installed
    code, _ = ending(monkeypatch, capsys, "parameter_reference.py", "page.md")
    assert "extra `docs`" in code
