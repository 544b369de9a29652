"""Settings for all tests; fixtures with a finished run (environment `test`) and a Ray cluster."""

import functools
import gc
import os
import shlex
import shutil
import sys
import uuid
from pathlib import Path

import execnet
import kedro_caches  # noqa: F401
import pytest
import yaml
from filelock import FileLock
from hypothesis import HealthCheck, settings
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

ROOT = Path(__file__).resolve().parents[1]

# pytest imports this file as `tests.conftest`, and tests as `conftest`, which would execute it again.
sys.modules["conftest"] = sys.modules[__name__]

# Tests run side by side and start processes of their own. These processes and torch, which is not imported yet, read
# this variable. With one thread per core each, they would spend most of their time waiting for each other.
os.environ["OMP_NUM_THREADS"] = os.environ.get("TEST_THREADS", "1")

# A shared machine may be slow at any single example, and hypothesis's checks of time would then fail a correct test.
# Every run draws the same examples, so that two runs of the same code agree; `--hypothesis-profile new` draws new ones.
CHECKS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("project", max_examples=30, derandomize=True, **CHECKS)
settings.register_profile("new", max_examples=100, print_blob=True, **CHECKS)
settings.load_profile("project")


# Kedro tries to import ibis, which is not installed, for each of a thousand parameters of a run.
sys.modules.setdefault("ibis", None)


@functools.cache
def bootstrap() -> None:
    """Tell Kedro of this project, only once, because each `bootstrap_project` registers all pipelines again."""
    bootstrap_project(ROOT)


def run_pipeline(data_root: Path, *names: str, params: dict | None = None, load_versions: dict | None = None) -> str:
    """Run registered pipelines in the `test` environment and return the run's id."""
    bootstrap()
    runtime_params = {"data_root": str(data_root), **(params or {})}
    with KedroSession.create(project_path=ROOT, env="test", runtime_params=runtime_params) as session:
        session.run(pipeline_names=list(names), load_versions=load_versions)
        return session.session_id


def quick_search() -> dict:
    """The settings of both searches in the environment `test`, for a run in another environment."""
    settings = yaml.safe_load((ROOT / "conf/test/parameters.yml").read_text())["search"]
    return {name: settings[name] for name in ("neuroshard", "neuroshard_plus")}


def pytest_xdist_setupnodes(specs: list[execnet.XSpec]) -> None:
    """Let parallel workers be forks of one process that has imported all modules."""
    server = uuid.uuid4().hex
    if hasattr(os, "pidfd_open"):
        for spec in specs:
            spec.python = shlex.join([sys.executable, str(ROOT / "tests/forked_python.py"), server])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with slow tests first, so that parallel workers finish at about the same time.

    Files that wait are spread evenly among those that compute, so that two workers seldom wait at the same time.
    """
    slow = _files_with("slow", items)
    waiting = [path for path in slow if path in _files_with("waits", items)]
    computing = [path for path in slow if path not in waiting]
    place = {path: at / len(kind) for kind in (waiting, computing) for at, path in enumerate(kind)}
    items.sort(key=lambda item: place.get(item.path, 1.0))


def _files_with(marker: str, items: list[pytest.Item]) -> list[Path]:
    return list(dict.fromkeys(item.path for item in items if item.get_closest_marker(marker)))


def pytest_collection_finish() -> None:
    """Collect garbage less often, and exempt the imported modules, which would be searched again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """The data root of a completed default run, which is tiny but uses real kernels and real collectives.

    Parallel workers share one run. Each worker has its own copy of the data, because tests add to it.
    """
    data_root = tmp_path_factory.mktemp("run") / "data"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        run_pipeline(data_root)
        return data_root
    shared = tmp_path_factory.getbasetemp().parent / "finished_run"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            run_pipeline(data_root)
            shutil.copytree(data_root, shared)
            return data_root
    return shutil.copytree(shared, data_root)


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of one host with one CPU; a test may add emulated hosts, which are on this machine, too."""
    pytest.importorskip("ray", reason="the extra [cluster] is not installed")
    import ray
    from ray.cluster_utils import Cluster

    # Workers import this project and these tests by name, as if they were installed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]))
        parts = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # no test needs them
        # Ray starts workers ahead and ends idle ones after a second, but each takes seconds of a core to start.
        kept = {"prestart_worker_first_driver": False, "kill_idle_workers_interval_ms": 0}
        running = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": kept, **parts})
        yield running
        ray.shutdown()
        running.shutdown()
