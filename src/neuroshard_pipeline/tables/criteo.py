"""Reads samples of Criteo's click logs: a label, 13 integers and 26 categories per line, separated by tabs.

Criteo Kaggle and Criteo 1TB have this format (https://ailab.criteo.com/ressources/). A missing integer or category is
an empty field. Categories are hexadecimal numbers of up to 32 bits. Shape: B samples.
"""

import gzip
import itertools
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.tables.ids import TableIds

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
NUM_FIELDS = 1 + NUM_INTEGERS + NUM_CATEGORIES
#: Value of a missing category.
MISSING = -1

_LABEL = re.compile(rb"[01]")
_INTEGER = re.compile(rb"(-?[0-9]{1,18})?")
_CATEGORY = re.compile(rb"([0-9a-fA-F]{1,8})?")
_LINE = re.compile(rb"[01](?:\t(?:-?[0-9]{1,18})?){%d}(?:\t(?:[0-9a-fA-F]{1,8})?){%d}" % (NUM_INTEGERS, NUM_CATEGORIES))

#: SplitMix64 (Steele et al., OOPSLA 2014): multipliers of the finaliser, and the increment 2**64 / golden ratio.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GOLDEN = 0x9E3779B97F4A7C15


class CriteoFileError(NeuroShardError):
    """A file of click logs is missing, unreadable or malformed."""


@dataclass(frozen=True)
class CriteoBatch:
    """Consecutive samples of a file: labels (B,), 1 for a click, integer and category features.

    An integer x is given as log(1 + x), 0 if negative or missing, (B, 13); a missing category is `MISSING`, (B, 26).
    """

    labels: NDArray[np.float32]
    integers: NDArray[np.float32]
    categories: NDArray[np.int64]


def read_criteo(path: str | Path, batch_size: int) -> Iterator[CriteoBatch]:
    """Iterate over the batches of a file, plain or compressed (`.gz`); the last one may be smaller. Reading is lazy.

    Raises:
        CriteoFileError: the file is missing, damaged or unreadable, or a line is malformed; the message then names the
            line and what is wrong with it.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            lines = enumerate(file, start=1)
            while chunk := list(itertools.islice(lines, batch_size)):
                yield _batch([_fields(f"{path}: line {number}", line.rstrip(b"\r\n")) for number, line in chunk])
    except FileNotFoundError:
        raise CriteoFileError(f"{path}: no such file; give a click log in Criteo's format") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CriteoFileError(f"{path}: not a complete gzip file ({error}); download it again") from error
    except OSError as error:
        raise CriteoFileError(f"{path}: cannot be read ({error.strerror})") from error


def hashed_ids(categories: NDArray[np.int64], num_embeddings: int, feature: int) -> TableIds:
    """Row numbers of one category feature: one id per sample, or none if the category is missing.

    The row number is a hash of the category (B,) modulo `num_embeddings`. The hash function is SplitMix64's finaliser,
    applied to the category's value plus a multiple of SplitMix64's increment that depends on the number of the
    `feature`, so that different features have different collisions.
    """
    present = categories != MISSING
    mixed = categories[present].astype(np.uint64) + np.uint64((feature + 1) * _GOLDEN % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    mixed ^= mixed >> np.uint64(31)
    indices = (mixed % np.uint64(num_embeddings)).astype(np.int64)
    return TableIds(indices, np.concatenate([[0], np.cumsum(present)]).astype(np.int64))


def _fields(where: str, line: bytes) -> list[bytes]:
    fields = line.split(b"\t")
    if _LINE.fullmatch(line) is None:
        raise CriteoFileError(f"{where}: {_problem(fields)}")
    return fields


def _problem(fields: list[bytes]) -> str:
    """Describe the first error of a malformed line."""
    if len(fields) != NUM_FIELDS:
        layout = f"a label, {NUM_INTEGERS} integers and {NUM_CATEGORIES} categories"
        return f"{len(fields)} fields separated by tabs, not {NUM_FIELDS}: {layout}"
    names = ["label", *(f"I{i + 1}" for i in range(NUM_INTEGERS)), *(f"C{i + 1}" for i in range(NUM_CATEGORIES))]
    forms = [_LABEL] + [_INTEGER] * NUM_INTEGERS + [_CATEGORY] * NUM_CATEGORIES
    wanted = {_LABEL: "0 or 1", _INTEGER: "a whole number or empty", _CATEGORY: "a hexadecimal number or empty"}
    place = next(at for at, form in enumerate(forms) if form.fullmatch(fields[at]) is None)
    value = fields[place].decode("utf-8", "backslashreplace")[:40]
    return f"field {names[place]} is {value!r}, not {wanted[forms[place]]}; correct the line or leave it out"


def _batch(rows: list[list[bytes]]) -> CriteoBatch:
    integers = np.array([[int(field or 0) for field in row[1 : NUM_INTEGERS + 1]] for row in rows], dtype=np.float64)
    categories = [[int(field, 16) if field else MISSING for field in row[NUM_INTEGERS + 1 :]] for row in rows]
    return CriteoBatch(
        labels=np.array([row[0] == b"1" for row in rows], dtype=np.float32),
        integers=np.log1p(np.maximum(integers, 0.0)).astype(np.float32),
        categories=np.array(categories, dtype=np.int64),
    )
