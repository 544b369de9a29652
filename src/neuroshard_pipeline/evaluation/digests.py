"""Hashes of values, by which results of earlier runs are found again."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def content(value: Any) -> Any:
    """The value with dataclasses, parameters and models replaced by their contents, so that its `repr` is complete."""
    if hasattr(value, "save"):
        return _saved_digest(value)
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if is_dataclass(value):
        return [(field.name, content(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, Mapping):
        return [(content(key), content(item)) for key, item in value.items()]
    return [content(item) for item in value] if isinstance(value, list | tuple) else value


def digest(*parts: Any) -> str:
    """A hash of the `repr` of all parts."""
    return hashlib.sha256("\x1f".join(map(repr, parts)).encode()).hexdigest()[:16]


def _saved_digest(model: Any) -> str:
    """A hash of the files that saving a model writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return digest(*(path.read_bytes() for path in files))
