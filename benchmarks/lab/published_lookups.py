"""Reads published lookup times (columns as in data/01_raw/published/fbgemm_lookups.csv), and describes the lookups.

A blank cell means that the publication does not state the value. The reader then assumes a usual value
(`_ASSUMED_ROWS` and the like), or skips the row and says why.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.lab.lookups import Lookup, Placement
from neuroshard_pipeline.tables.profile import DEFAULT_POPULARITY_EXPONENT, expected_rows, zipf_buckets
from neuroshard_pipeline.tables.records import Record, read_records

COLUMNS = (
    "gpu", "kernel", "num_tables", "rows_per_table", "total_rows", "dim", "bag_len", "batch", "n_indices",
    "weights_dtype", "output_dtype", "distribution", "optimizer", "weighted", "pooling", "placement", "fwd_us",
    "bwd_us", "fwdbwd_us", "bwd_cta_us", "bwd_warp_us", "timing", "source", "note",
)  # fmt: skip

#: What a time covers: a pass, both passes, or only the two backward kernels that reduce gradients and update rows.
Part = Literal["forward", "backward", "total", "reduction"]

_ASSUMED_ROWS = 1_000_000  # between the default of FBGEMM's benchmark, 1e5, and the 1e7 of published runs of it
_ASSUMED_OPTIMIZER = "rowwise_adagrad"  # default of this benchmark, split_table_batched_embeddings_benchmark.py
_BYTES_OF_TYPE = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)([kmb]?)(?![a-z])")
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_UNIFORM = 0.0
_HIGHEST_EXPONENT = 3.0


class _UnusableError(Exception):
    """A row that cannot be modelled; the message says why."""


@dataclass(frozen=True)
class PublishedLookup:
    """One published row.

    Attributes:
        where: file and line.
        source: column `source`.
        gpu: column `gpu`.
        preset: name of the modelled device.
        kernel: column `kernel`.
        lookup: what was measured.
        times_us: published time by part.
    """

    where: str
    source: str
    gpu: str
    preset: str
    kernel: str
    lookup: Lookup
    times_us: dict[Part, float]


def read_published_lookups(path: Path, presets: Collection[str]) -> tuple[list[PublishedLookup], list[str]]:
    """All rows that can be modelled, and for every other row the reason why not.

    Args:
        path: CSV file with `COLUMNS`; further columns are ignored.
        presets: names of the modelled devices.

    Raises:
        TableFileError: the file cannot be read, or a column is missing.
    """
    records = read_records(path)
    missing = [column for column in COLUMNS if column not in records[0].values]
    if missing:
        raise TableFileError(f"{path}: column {missing[0]!r} is missing; the columns are {', '.join(COLUMNS)}")
    rows, skipped = [], []
    for record in records:
        try:
            rows.append(_published(record, presets))
        except (_UnusableError, TableFileError) as reason:
            skipped.append(str(reason))
    return rows, skipped


def preset_of(gpu: str, presets: Collection[str]) -> str | None:
    """The preset with the most words among those whose words all occur in a GPU's name: `a100-80gb` before `a100`."""
    words = set(re.findall(r"[a-z0-9]+", gpu.lower()))
    fitting = [preset for preset in presets if words.issuperset(preset.split("-"))]
    return max(fitting, key=lambda preset: len(preset.split("-")), default=None)


def _published(record: Record, presets: Collection[str]) -> PublishedLookup:
    gpu, kernel = _text(record, "gpu"), _text(record, "kernel")
    board = "HBM2e" if re.search(r"hbm2e", _text(record, "note"), re.IGNORECASE) else ""
    preset = preset_of(f"{gpu} {board}" if gpu else "", presets)
    if preset is None:
        raise _UnusableError(f"no preset for GPU {gpu!r}" if gpu else "GPU not stated")
    if "host launch included" in _text(record, "timing").lower():
        raise _UnusableError("the time includes the host's launches, not the GPU alone")
    times_us = _times(record, kernel)
    lookup = _lookup(record, kernel)
    where = f"{record.path.name}: {record.where}"
    return PublishedLookup(where, _text(record, "source"), gpu, preset, kernel, lookup, times_us)


def _times(record: Record, kernel: str) -> dict[Part, float]:
    cells = {column: _positive(record, column) for column in ("fwd_us", "bwd_us", "fwdbwd_us")}
    reduction = [_positive(record, column) for column in ("bwd_cta_us", "bwd_warp_us")]
    backward: Part = "reduction" if "cta+warp" in kernel.lower().replace(" ", "") else "backward"
    times: dict[Part, float] = {}
    if cells["fwd_us"]:
        times["forward"] = cells["fwd_us"]
    if cells["bwd_us"]:
        times[backward] = cells["bwd_us"]
    if all(reduction):
        times["reduction"] = sum(us for us in reduction if us)
    if cells["fwdbwd_us"] and not (cells["fwd_us"] and cells["bwd_us"]):
        times["total"] = cells["fwdbwd_us"]
    if not times:
        raise _UnusableError("no time in microseconds")
    return times


def _lookup(record: Record, kernel: str) -> Lookup:
    tables = int(_positive(record, "num_tables") or 0)
    dims = _per_table(record, "dim", tables) if tables else None
    if dims is None:
        raise _UnusableError(f"shape not stated ({'dim' if tables else 'num_tables'} is blank)")
    rows = _per_table(record, "rows_per_table", tables)
    if rows is None:
        total_rows = _positive(record, "total_rows")
        rows = np.full(tables, total_rows / tables if total_rows else float(_ASSUMED_ROWS))
    samples, ids = _samples_and_ids(record, tables)
    pooled = _text(record, "pooling").lower() != "none" and not re.search(r"nobag|sequence|index_select", kernel)
    placement, cached_share = _placement(record)
    return Lookup(
        ids=ids,
        bags=samples if pooled else ids,
        dims=dims,
        element_bytes=np.full(tables, _element_bytes(record, "weights_dtype")),
        rows_of_bin=_rows_of_bin(record, rows, ids),
        optimizer="none" if "index_select" in kernel else _optimizer(record),
        weighted=_text(record, "weighted").lower() == "yes",
        output_bytes=_element_bytes(record, "output_dtype"),
        placement=placement,
        cached_share=cached_share,
    )


def _samples_and_ids(record: Record, tables: int) -> tuple[FloatArray, FloatArray]:
    """Samples and ids of every table."""
    samples, bag_len = _per_table(record, "batch", tables), _per_table(record, "bag_len", tables)
    total = _positive(record, "n_indices")
    if samples is None:
        raise _UnusableError("shape not stated (batch is blank)")
    if bag_len is None and total is None:
        raise _UnusableError("shape not stated (bag_len and n_indices are blank)")
    ids = samples if bag_len is None else samples * bag_len
    return samples, ids if total is None else ids * (total / ids.sum())


def _rows_of_bin(record: Record, rows: FloatArray, ids: FloatArray) -> FloatArray:
    """Distinct rows of every table per reuse bin, (tables, 17), under the stated or assumed distribution."""
    exponent, unique_rows = _distribution(record)
    profiles: dict[tuple[int, int], FloatArray] = {}
    for key in zip(rows.round().astype(int).tolist(), ids.round().astype(int).tolist(), strict=True):
        if key not in profiles:
            of_table = exponent
            if unique_rows is not None:
                of_table = _exponent_of(*key, unique_rows / len(rows))
            profiles[key] = _zipf_rows(*key, of_table)
    keys = zip(rows.round().astype(int).tolist(), ids.round().astype(int).tolist(), strict=True)
    return np.stack([profiles[key] for key in keys])


def _zipf_rows(rows: int, ids: int, exponent: float) -> FloatArray:
    near_one = exponent + 1e-6 * (exponent == 1.0)  # the buckets' formula divides by 1 - exponent
    return np.asarray(expected_rows(*zipf_buckets(max(rows, 1), near_one), max(ids, 1)))


@cache
def _exponent_of(rows: int, ids: int, unique_rows: float) -> float:
    """The exponent from 0 to 3 with which `ids` draws give `unique_rows` distinct rows, or come closest to that."""

    def excess(exponent: float) -> float:
        return float(_zipf_rows(rows, ids, exponent).sum()) - unique_rows

    if excess(_UNIFORM) <= 0:
        return _UNIFORM
    return float(brentq(excess, _UNIFORM, _HIGHEST_EXPONENT, xtol=1e-4)) if excess(_HIGHEST_EXPONENT) < 0 else 3.0


def _distribution(record: Record) -> tuple[float, float | None]:
    """Exponent of the popularity of rows, and the number of distinct rows of all tables together if it is stated.

    FBGEMM's benchmark draws uniform ids for alpha 1.0 and below. If no distribution is stated, the default
    exponent of `tables.profile` is assumed.
    """
    text = _text(record, "distribution").lower()
    unique = re.search(r"([\d.]+)\s*unique", text)
    alpha = re.search(r"(?:alpha|zipf|exponent)\s*=?\s*([\d.]+)", text)
    exponent = DEFAULT_POPULARITY_EXPONENT
    if alpha:
        exponent = float(alpha[1])
        exponent = exponent if exponent > 1.0 or "power" in text or "zipf" in text else _UNIFORM
    elif "uniform" in text or "random" in text:
        exponent = _UNIFORM
    return exponent, float(unique[1]) if unique else None


def _placement(record: Record) -> tuple[Placement, float]:
    text = _text(record, "placement").lower()
    ratio = re.search(r"ratio\s*([\d.]+)", text)
    if "after prefetch" in text:  # the rows are in the cache, and the time does not include fetching them
        return "device", 1.0
    if "cach" in text:
        return "managed_caching", min(float(ratio[1]), 1.0) if ratio else 1.0
    if "managed" in text or "uvm" in text or "host" in text:
        return "managed", 1.0
    if text and "device" not in text and "hbm" not in text:
        raise record.problem("placement", "is unknown; use device, managed (UVM) or managed caching")
    return "device", 1.0


def _optimizer(record: Record) -> str:
    if all(record.is_empty(column) for column in ("bwd_us", "fwdbwd_us", "bwd_cta_us", "bwd_warp_us")):
        return "none"  # only the forward pass was timed
    text = re.sub(r"[^a-z]", "", _text(record, "optimizer").lower())
    for name, words in (
        ("rowwise_adagrad", "rowwiseadagrad"),
        ("adagrad", "adagrad"),
        ("adam", "adam"),
        ("sgd", "sgd"),
    ):
        if words in text:
            return name
    if text in ("", "none"):
        return "none" if text else _ASSUMED_OPTIMIZER
    raise record.problem("optimizer", "is unknown; use sgd, rowwise_adagrad, adagrad, adam or none")


def _element_bytes(record: Record, column: str) -> float:
    text = _text(record, column).lower() or "fp32"
    for name, num_bytes in _BYTES_OF_TYPE.items():
        if name in text:
            return num_bytes
    raise record.problem(column, f"is unknown; use one of {', '.join(_BYTES_OF_TYPE)}")


def _per_table(record: Record, column: str, tables: int) -> FloatArray | None:
    """One number per table: `5`, `5;7` (repeated as often as needed), `5-7` (the middle), `10M`, or `mean 5.5`."""
    text = _text(record, column)
    if not text:
        return None
    numbers = []
    for part in text.split(";"):
        found = [float(number) * _UNITS[unit] for number, unit in _NUMBER.findall(part.lower())]
        is_range = len(found) == 2 and re.fullmatch(r"[^-]*\d\w*\s*-\s*\d[^-]*", part)
        if not found or min(found) <= 0 or not (len(found) == 1 or is_range):
            raise record.problem(column, "is not a positive number, a range such as 5-7, or a list such as 5;7")
        numbers.append(sum(found) / len(found))
    return np.resize(np.array(numbers), tables)


def _positive(record: Record, column: str) -> float | None:
    if record.is_empty(column):
        return None
    value = record.number(column)
    if value <= 0:
        raise record.problem(column, "must be above 0, or blank if it is not stated")
    return value


def _text(record: Record, column: str) -> str:
    value = record.values.get(column)
    return "" if value is None else str(value).strip()
