"""Reads a user's constraints from a YAML or JSON file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from neuroshard_pipeline.errors import TableFileError, TaskError, did_you_mean
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.records import read_text
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY

_SUFFIXES = (".yml", ".yaml", ".json")


class _TableEntry(BaseModel, extra="forbid", strict=True):
    """Constraints of one table in a file; every key is optional."""

    ranks: list[int] | None = None
    forbidden_ranks: list[int] = Field(default_factory=list)
    min_width: int = COLUMN_GRANULARITY
    max_shards: int | None = None
    split: bool = True
    sharding_types: list[str] | None = None
    in_gpu_memory: bool = False


class _ConstraintFile(BaseModel, extra="forbid", strict=True):
    """Content of a constraint file; every key is optional."""

    tables: dict[str, _TableEntry] = Field(default_factory=dict)
    together: list[list[str]] = Field(default_factory=list)
    min_width: int = COLUMN_GRANULARITY
    max_shards: int | None = None
    sharding_types: list[str] | None = None


def read_constraints(path: str | Path) -> Constraints:
    """Read constraints from a `.yml`, `.yaml` or `.json` file.

    All keys are optional: `tables` (by name: `ranks`, `forbidden_ranks`, `min_width`, `max_shards`, `split`,
    `sharding_types`, `in_gpu_memory`), `together` (a list of lists of names), `min_width`, `max_shards` and
    `sharding_types` (for all tables); see `Constraints`.

    Raises:
        TableFileError: the file is unreadable or invalid; the message names the file and the first error.
    """
    path = Path(str(path))  # a value that is not a path, such as None, gets into the error
    if path.suffix.lower() not in _SUFFIXES:
        raise TableFileError(f"{path}: suffix {path.suffix!r} is not one of {', '.join(_SUFFIXES)}; write YAML or JSON")
    text = read_text(path)
    is_json = path.suffix.lower() == ".json"
    try:
        content = json.loads(text, object_pairs_hook=_distinct) if is_json else yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError) as error:  # TypeError: a key is a list or a mapping
        raise TableFileError(f"{path}: not readable YAML or JSON ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise TableFileError(f"{path}: must hold keys such as 'tables' and 'together', not {content!r}")
    try:
        file = _ConstraintFile.model_validate(content)
        tables = [TableConstraint(name, **dict(entry)) for name, entry in file.tables.items()]
        return Constraints(tables, file.together, file.min_width, file.max_shards, file.sharding_types, f"{path}: ")
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = list((_TableEntry if len(first["loc"]) > 1 else _ConstraintFile).model_fields)
            advice = did_you_mean(str(first["loc"][-1]), known) or f"; use one of {', '.join(known)}"
            raise TableFileError(f"{path}: the key {key} does not exist{advice}") from error
        raise TableFileError(f"{path}: {key}: {first['msg']}; the file has {first['input']!r}") from error
    except TaskError as error:
        raise TableFileError(f"{path}: {error}") from error


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses repeated keys; plain YAML would silently keep the last one."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    return _distinct(loader.construct_pairs(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"key {key!r} occurs {count} times; keep one of them")
    return dict(pairs)
