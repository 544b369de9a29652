from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "explore_costs.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebook_is_committed_without_outputs(notebook):
    nbformat.validate(notebook)
    assert all(cell.execution_count is None and not cell.outputs for cell in code_cells(notebook))


def test_notebook_runs_from_top_to_bottom(notebook, finished_run, monkeypatch):
    monkeypatch.setenv("KEDRO_ENV", "test")
    monkeypatch.setenv("NEUROSHARD_DATA_ROOT", str(finished_run))
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    executed = NotebookClient(notebook.copy(), timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in code_cells(executed) for output in cell.outputs]
    assert sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs) == 5
    written = "".join(output.get("text", "") for output in outputs)
    assert f"data in {finished_run}" in written
    assert "Warning" not in written
