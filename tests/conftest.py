"""Fixtures for the tests of several packages: a finished run in the `test` environment, and a Ray cluster."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

ROOT = Path(__file__).resolve().parents[1]

# A shared machine may be slow at any single example, and hypothesis's deadline would then fail a correct test.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


def run_pipeline(data_root: Path, *names: str, params: dict | None = None, load_versions: dict | None = None) -> str:
    """Run registered pipelines in the `test` environment and return the run's id."""
    bootstrap_project(ROOT)
    runtime_params = {"data_root": str(data_root), **(params or {})}
    with KedroSession.create(project_path=ROOT, env="test", runtime_params=runtime_params) as session:
        session.run(pipeline_names=list(names), load_versions=load_versions)
        return session.session_id


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """The data root of a completed default run, which is tiny but uses real kernels and real collectives."""
    data_root = tmp_path_factory.mktemp("data")
    run_pipeline(data_root)
    return data_root


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two emulated hosts with one CPU each, both on this machine."""
    pytest.importorskip("ray", reason="the extra [cluster] is not installed")
    import ray
    from ray.cluster_utils import Cluster

    # Workers import this project and these tests by name, as if they were installed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]))
        running = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        running.add_node(num_cpus=1)
        yield running
        ray.shutdown()
        running.shutdown()
