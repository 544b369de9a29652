"""Settings and a fork server for all tests; fixtures with a finished run (environment `test`) and a Ray cluster."""

import functools
import gc
import io
import multiprocessing
import os
import pickle
import re
import shutil
import sys
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import omegaconf.base
import pytest
import yaml
from filelock import FileLock
from hypothesis import HealthCheck, settings
from kedro.config import OmegaConfigLoader
from kedro.framework.session import KedroSession, session
from kedro.framework.startup import bootstrap_project
from kedro.validation.type_extractor import TypeExtractor
from omegaconf import OmegaConf
from warm import MODULES

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


@functools.cache
def _parsed(text: str) -> Any:
    config = _load(io.StringIO(text))
    OmegaConf.set_readonly(config, True)
    return config


# Hundreds of tests start a run, and every run reads the same files of configuration. Each text is parsed once, and so
# is each interpolation in them. Programs that the tests start parse the files themselves.
_load = OmegaConf.load
OmegaConf.load = staticmethod(lambda file: _parsed(file.read()))
omegaconf.base.parse = functools.cache(omegaconf.base.parse)

_resolve = OmegaConfigLoader._merge_and_resolve
_resolved: dict[tuple, bytes] = {}


@functools.cache
def _runtime_params_named_in(path: Path) -> list[str]:
    return re.findall(r"\$\{runtime_params:(\w+)", path.read_text())


def _changeable(config: Any) -> Any:
    copied = pickle.loads(pickle.dumps(config))  # faster than `copy.deepcopy`
    OmegaConf.set_readonly(copied, None)
    return copied


def _merge_and_resolve(self: OmegaConfigLoader, key: str, config_per_file: dict[Path, Any]) -> dict[str, Any]:
    """Kedro's resolution of files that share no section, file by file, and only once with the same runtime parameters.

    A section of parameters replaces its values by those of the runtime parameters of the same name.
    """
    given, sections = self.runtime_params or {}, [name for config in config_per_file.values() for name in config]
    shared = {name for name, number in Counter(sections).items() if number > 1}
    if any(key == "parameters" or not name.startswith("_") for name in shared):  # Kedro drops other names with a "_"
        return _resolve(self, key, {path: _changeable(config) for path, config in config_per_file.items()})
    new = {name: value for name, value in given.items() if key == "parameters" and name not in sections}
    files = {**config_per_file, None: OmegaConf.create(new)} if new else config_per_file
    resolved = {}
    try:
        for path, config in files.items():
            names = [*config, *_runtime_params_named_in(path)] if path else []
            self.runtime_params = {name: given[name] for name in names if name in given}
            case = (self.conf_source, self.env, key, path, pickle.dumps(self.runtime_params), path or pickle.dumps(new))
            if case not in _resolved:
                self._runtime_params_oc = None  # Kedro's copy of the runtime parameters, for interpolations
                _resolved[case] = pickle.dumps(_resolve(self, key, {path: _changeable(config)}))
            resolved |= pickle.loads(_resolved[case])
    finally:
        self.runtime_params, self._runtime_params_oc = given, None
    return {name: value for name, value in resolved.items() if name in sections or name in new}


OmegaConfigLoader._merge_and_resolve = _merge_and_resolve

_merge = OmegaConfigLoader._soft_merge


@functools.cache
def _pickled_merge(both: bytes) -> bytes:
    return pickle.dumps(_merge(*pickle.loads(both)))


def _soft_merge(config: dict[str, Any], env_config: dict[str, Any], _path: str | None = None) -> dict[str, Any]:
    """Kedro's merge of two environments, section by section. A section that no test changes is merged only once."""
    merged = {}
    for name in {**config, **env_config}:
        both = [{name: values[name]} if name in values else {} for values in (config, env_config)]
        merged |= pickle.loads(_pickled_merge(pickle.dumps(both)))
    return merged


OmegaConfigLoader._soft_merge = staticmethod(_soft_merge)

# What depends on nothing but files is found once: parameters that are set twice, types of nodes, the state of git.
_checked: set[tuple[str, frozenset[Path]]] = set()
_check_duplicates = OmegaConfigLoader._check_duplicates


def _check_once(self: OmegaConfigLoader, key: str, configs: dict[Path, Any]) -> None:
    if (key, frozenset(configs)) not in _checked:
        _check_duplicates(self, key, configs)
        _checked.add((key, frozenset(configs)))


OmegaConfigLoader._check_duplicates = _check_once
_types_of_pipeline = functools.cache(functools.partial(TypeExtractor._extract_types_from_pipeline, TypeExtractor({})))
TypeExtractor._extract_types_from_pipeline = lambda _, pipeline: _types_of_pipeline(pipeline)
session._describe_git = functools.cache(session._describe_git)

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


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """In a parallel run, start a fork server with the modules of all tests, for worker processes and programs.

    A pytest process has one fork server. Without this call, the server would import only what the first team of workers
    needs, and every worker of another team would import its own modules for seconds. A run that is not parallel usually
    has few tests and starts no such server here.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT / "tests"), prepend=os.pathsep)  # for the module `compiled`
            multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES)
            forkserver.ensure_running()


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
