"""Imported once by all tests: reads Kedro's configuration through caches, because hundreds of tests start a run.

pytest executes `conftest.py` again if a folder has a `conftest.py` of its own, and caches would then wrap caches.
"""

import functools
import inspect
import io
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import omegaconf.base
from kedro.config import OmegaConfigLoader
from kedro.framework.session import session
from kedro.io import core
from kedro.validation.type_extractor import TypeExtractor
from omegaconf import OmegaConf


@functools.cache
def _parsed(text: str) -> Any:
    config = _load(io.StringIO(text))
    OmegaConf.set_readonly(config, True)
    return config


# Each text is parsed once, and so is each interpolation in it. Programs that the tests start parse files themselves.
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

# A catalog has a thousand datasets, and Kedro notes the arguments of each. Their signatures are read once per function.
_signature = functools.cache(functools.partial(inspect.signature, follow_wrapped=False))


def _call_arguments(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    bound = _signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


core.getcallargs = _call_arguments
