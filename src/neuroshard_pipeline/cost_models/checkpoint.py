"""Cost models on disk: `model.json` says what the weights are, `weights.safetensors` holds them.

Nothing is ever unpickled. The JSON carries the checksum of the weights, so that a truncated or mixed-up pair of
files is refused rather than half-believed. Writing the folder atomically is up to the caller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from neuroshard_pipeline.errors import CostModelError

MODEL_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"

#: Raised whenever the meaning of a stored field changes; older checkpoints are then refused, not misread.
FORMAT_VERSION = 3

REMEDY = "train it again with: kedro run --pipeline pretrain"

Weights = dict[str, NDArray[Any]]


def save_checkpoint(folder: Path | str, kind: str, description: Mapping[str, Any], weights: Weights) -> None:
    """Write a model.

    Args:
        folder: is made where missing.
        kind: name of the model class, checked on loading.
        description: JSON values: architecture, feature names, provenance and so on.
        weights: arrays by name.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = save_tensors({name: np.ascontiguousarray(value) for name, value in weights.items()})
    header = {"format_version": FORMAT_VERSION, "kind": kind, "weights_sha256": hashlib.sha256(blob).hexdigest()}
    (folder / WEIGHTS_FILE).write_bytes(blob)
    (folder / MODEL_FILE).write_text(json.dumps({**header, **description}, indent=2) + "\n", encoding="utf-8")


def load_checkpoint(folder: Path | str, kind: str) -> tuple[dict[str, Any], Weights]:
    """Read what `save_checkpoint` wrote.

    Raises:
        CostModelError: a file is missing, truncated or of another kind or format; names file and remedy.
    """
    folder = Path(folder)
    description = _read_description(folder / MODEL_FILE)
    for field, expected in (("kind", kind), ("format_version", FORMAT_VERSION)):
        if description.get(field) != expected:
            found = description.get(field)
            raise CostModelError(f"{folder / MODEL_FILE}: {field} is {found!r}, not {expected!r}; {REMEDY}")
    blob = _read_bytes(folder / WEIGHTS_FILE)
    if hashlib.sha256(blob).hexdigest() != description.get("weights_sha256"):
        raise CostModelError(
            f"{folder / WEIGHTS_FILE}: {len(blob)} bytes whose checksum is not the one in {MODEL_FILE}: the file is "
            f"truncated or belongs to another model; {REMEDY}"
        )
    try:
        return description, load_tensors(blob)
    except SafetensorError as error:
        raise CostModelError(f"{folder / WEIGHTS_FILE}: not a safetensors file ({error}); {REMEDY}") from error


def described(description: Mapping[str, Any], field: str, folder: Path | str) -> Any:
    """A field of `model.json`.

    Raises:
        CostModelError: the field is missing.
    """
    if field not in description:
        raise CostModelError(f"{Path(folder) / MODEL_FILE}: field {field!r} is missing; {REMEDY}")
    return description[field]


def require_features(description: Mapping[str, Any], expected: Mapping[str, list[str]], folder: Path | str) -> None:
    """Refuse a model whose features are not those that this version of the code computes.

    Raises:
        CostModelError: names the features that differ.
    """
    for field, names in expected.items():
        stored = described(description, field, folder)
        if stored != names:
            differing = sorted(set(stored) ^ set(names)) or names
            raise CostModelError(
                f"{Path(folder) / MODEL_FILE}: {field} differ from this version's in {', '.join(differing)}; {REMEDY}"
            )


def require_weights(weights: Weights, names: Set[str], folder: Path | str) -> None:
    """Refuse weights that lack an array of `names`.

    Raises:
        CostModelError: names the missing arrays.
    """
    missing = sorted(names - set(weights))
    if missing:
        raise CostModelError(f"{Path(folder) / WEIGHTS_FILE}: weights {', '.join(missing)} are missing; {REMEDY}")


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(_read_bytes(path).decode("utf-8"))
    except ValueError as error:
        raise CostModelError(f"{path}: not valid JSON ({error}); {REMEDY}") from error
    if not isinstance(description, dict):
        raise CostModelError(f"{path}: holds a {type(description).__name__}, not an object; {REMEDY}")
    return description


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CostModelError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from error
