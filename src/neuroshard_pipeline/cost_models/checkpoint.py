"""Models on disk: `model.json` describes a model, `weights.safetensors` holds its arrays.

Loading never unpickles. The JSON carries the checksum of the weights, so that a truncated file, or a pair of files from
two different models, is refused. The caller is responsible for writing the folder atomically.
"""

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from neuroshard_pipeline.errors import CostModelError, NeuroShardError

MODEL_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"

#: Increased whenever the meaning of a stored field changes, so that older checkpoints are refused, not misread.
FORMAT_VERSION = 3

COMMAND = "kedro run --pipeline pretrain"
REMEDY = f"train it again with: {COMMAND}"

Weights = dict[str, NDArray[Any]]


class ArrayGroup:
    """Base of dataclasses whose fields are all arrays that are stored together."""

    @classmethod
    def names(cls, prefix: str = "") -> set[str]:
        """Names of the arrays in a checkpoint: `<prefix><field>`."""
        return {f"{prefix}{field.name}" for field in fields(cls)}  # type: ignore[arg-type]  # subclasses are dataclasses

    def arrays(self, prefix: str) -> Weights:
        """Arrays by their names in a checkpoint."""
        return {f"{prefix}{name}": value for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Weights, prefix: str) -> Self:
        """Inverse of `arrays`."""
        return cls(**{name: np.asarray(arrays[f"{prefix}{name}"], dtype=np.float64) for name in cls.names()})


@dataclass(frozen=True)
class Checkpoint:
    """A model that was read from a folder: the content of `model.json` and of `weights.safetensors`."""

    folder: Path
    description: dict[str, Any]
    arrays: Weights

    def field(self, name: str) -> Any:
        """A field of `model.json`.

        Raises:
            CostModelError: the field is missing.
        """
        if name not in self.description:
            raise CostModelError(f"{self.folder / MODEL_FILE}: field {name!r} is missing; {REMEDY}")
        return self.description[name]

    def require(self, expected: Mapping[str, Any]) -> None:
        """Refuse a model whose description differs from what this version of the code computes, `expected` by field.

        Raises:
            CostModelError: a field is missing or differs; the message names it.
        """
        for name, value in expected.items():
            stored = self.field(name)
            if stored != value and isinstance(value, list) and isinstance(stored, list):
                differing = sorted(set(stored) ^ set(value)) or value
                raise CostModelError(
                    f"{self.folder / MODEL_FILE}: {name} of model and code differ: {', '.join(differing)}; {REMEDY}"
                )
            if stored != value:
                raise CostModelError(f"{self.folder / MODEL_FILE}: {name} is {stored!r}, not {value!r}; {REMEDY}")

    def take(self, names: Set[str], prefix: str = "") -> Weights:
        """The arrays `names`, which are stored as `<prefix><name>`; the keys of the result have no prefix.

        Raises:
            CostModelError: arrays are missing; the message names them.
        """
        missing = sorted(f"{prefix}{name}" for name in names if f"{prefix}{name}" not in self.arrays)
        if missing:
            raise CostModelError(f"{self.folder / WEIGHTS_FILE}: weights {', '.join(missing)} are missing; {REMEDY}")
        return {name: self.arrays[f"{prefix}{name}"] for name in names}


def save_checkpoint(folder: Path | str, kind: str, description: Mapping[str, Any], weights: Weights) -> None:
    """Write a model of the class `kind`, which loading checks, to a folder, which is created if it is missing.

    The description has JSON values, for example feature names and provenance.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = save_tensors({name: np.ascontiguousarray(value) for name, value in weights.items()})
    header = {"format_version": FORMAT_VERSION, "kind": kind, "weights_sha256": hashlib.sha256(blob).hexdigest()}
    (folder / WEIGHTS_FILE).write_bytes(blob)
    (folder / MODEL_FILE).write_text(json.dumps({**header, **description}, indent=2) + "\n", encoding="utf-8")


def load_checkpoint(folder: Path | str, kind: str) -> Checkpoint:
    """Read the files that `save_checkpoint` wrote.

    Raises:
        CostModelError: a file is missing, truncated or of another kind or format; the message names file and remedy.
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
            f"{folder / WEIGHTS_FILE}: the checksum of the {len(blob)} bytes is not the one in {MODEL_FILE}: the file "
            f"is truncated or belongs to another model; {REMEDY}"
        )
    try:
        return Checkpoint(folder, description, load_tensors(blob))
    except SafetensorError as error:
        raise CostModelError(f"{folder / WEIGHTS_FILE}: not a safetensors file ({error}); {REMEDY}") from error


def version_folder(
    folder: Path,
    version: str | None,
    noun: str = "cost model",
    command: str = COMMAND,
    error: type[NeuroShardError] = CostModelError,
) -> Path:
    """Folder of one version of a model.

    Args:
        folder: folder of all versions in Kedro's layout, `<folder>/<version>/<name of folder>/`.
        version: None for the newest.
        noun: what the model is called in messages.
        command: command that trains such a model, for messages.
        error: type of the exception to raise.

    Raises:
        NeuroShardError: no model or no such version exists; the message names folder, available versions and remedy.
    """
    entries = folder.iterdir() if folder.is_dir() else ()
    versions = sorted(entry.name for entry in entries if (entry / folder.name).is_dir())
    if not versions:
        raise error(f"{folder}: holds no {noun}; train one with: {command}")
    if version is not None and version not in versions:
        raise error(
            f"{folder}: has no version {version!r}; available are {', '.join(versions)}; leave the version out for the "
            f"newest, or train a new one with: {command}"
        )
    return folder / (version or versions[-1]) / folder.name


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
