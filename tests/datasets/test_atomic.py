"""Saves are atomic, even if the process is killed."""

import json
import signal
import textwrap
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
import warm
from kedro.io import DatasetError, Version

from neuroshard_pipeline.datasets import (
    AtomicJSONDataset,
    AtomicParquetDataset,
    AtomicTextDataset,
)
from neuroshard_pipeline.datasets.figures import AtomicPlotlyDataset

CASES = [
    (AtomicJSONDataset, "a.json", {"x": [1, 2]}),
    (AtomicTextDataset, "a.html", "<p>text</p>"),
    (AtomicParquetDataset, "a.parquet", pd.DataFrame({"x": [1, 2]})),
    (AtomicPlotlyDataset, "a.json", go.Figure(go.Scatter(y=[1, 2]))),
]


def as_plain(data):
    if isinstance(data, go.Figure):
        return json.loads(data.to_json())
    return data.to_dict() if isinstance(data, pd.DataFrame) else data


@pytest.mark.parametrize(("kind", "name", "data"), CASES)
def test_a_version_round_trips_and_leaves_nothing_else(tmp_path, kind, name, data):
    dataset = kind(filepath=str(tmp_path / name), version=Version(None, None))
    dataset.save(data)
    assert as_plain(dataset.load()) == as_plain(data)
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [name]


class CannotBeWritten:
    """An object that cannot be written as JSON."""


def test_a_failed_save_leaves_the_older_version_as_the_newest(tmp_path):
    path = str(tmp_path / "a.json")
    AtomicJSONDataset(filepath=path, version=Version(None, "2026-01-01")).save({"good": 1})
    with pytest.raises(DatasetError):
        AtomicJSONDataset(filepath=path, version=Version(None, "2026-01-02")).save({"bad": CannotBeWritten()})
    assert AtomicJSONDataset(filepath=path, version=Version(None, None)).load() == {"good": 1}


def test_a_save_killed_halfway_leaves_the_older_version_as_the_newest(tmp_path):
    path = tmp_path / "a.json"
    AtomicJSONDataset(filepath=str(path), version=Version(None, "2026-01-01")).save({"good": 1})
    script = tmp_path / "script.py"
    program = f"""
        import os, signal
        from kedro.io import Version
        from neuroshard_pipeline.datasets import AtomicJSONDataset

        class Killer(dict):
            def items(self):
                yield "first", "x" * 100_000
                os.kill(os.getpid(), signal.SIGKILL)

        AtomicJSONDataset(filepath={str(path)!r}, version=Version(None, "2026-01-02")).save(Killer(a=1))
        """
    script.write_text(textwrap.dedent(program))
    killed = warm.run(script)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert AtomicJSONDataset(filepath=str(path), version=Version(None, None)).load() == {"good": 1}
    assert json.loads(Path(path, "2026-01-01", "a.json").read_text()) == {"good": 1}
