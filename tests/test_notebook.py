from pathlib import Path

import nbformat
import pytest
import warm
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "explore_costs.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebook_is_committed_without_outputs(notebook):
    nbformat.validate(notebook)
    assert all(cell.execution_count is None and not cell.outputs for cell in code_cells(notebook))


@pytest.fixture
def kernel(finished_run, tmp_path):
    """A client of a Jupyter kernel that has the finished run's data, in the folder of the notebook."""
    connection, _ = write_connection_file(str(tmp_path / "kernel.json"))
    environment = {"KEDRO_ENV": "test", "NEUROSHARD_DATA_ROOT": str(finished_run)}
    process = warm.start(["-m", "ipykernel_launcher", "-f", connection], tmp_path, environment)
    client = BlockingKernelClient(connection_file=connection)
    client.load_connection_file()
    client.start_channels(hb=False)  # a kernel that waits for a core has no heartbeat, but it lives
    client.wait_for_ready(timeout=300)
    client.execute(f"%cd -q {NOTEBOOK.parent}")
    yield client
    process.kill()  # a kernel that is asked to shut down takes half a minute
    process.join()
    client.stop_channels()


def test_notebook_runs_from_top_to_bottom(notebook, kernel, finished_run):
    outputs = []
    for cell in code_cells(notebook):
        reply = kernel.execute_interactive(cell.source, timeout=300, allow_stdin=False, output_hook=outputs.append)
        assert reply["content"]["status"] == "ok", reply["content"]
    contents = [output["content"] for output in outputs]
    assert sum("application/vnd.plotly.v1+json" in content.get("data", {}) for content in contents) == 5
    written = "".join(content.get("text", "") for content in contents)
    assert f"data in {finished_run}" in written
    assert "Warning" not in written
