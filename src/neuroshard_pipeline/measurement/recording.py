"""Recordings: compute costs that were measured once, on a device that need not be there any more.

A recording is a folder with the pool of tables, the samples, their costs and a data card:

    table_pool.parquet        as `augment.table_pool`
    compute_samples.parquet   as `augment.compute_samples`
    compute_sample_settings.parquet   as `augment.compute_sample_settings`
    compute_costs.parquet     as `measure.compute_costs`
    card.json                 what it was measured on and how (`make_card`)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.tables.frames import POOL_COLUMNS, compute_samples_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample

CARD_FILE = "card.json"
COST_COLUMNS = ["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"]
_FILES = {
    "table_pool.parquet": list(POOL_COLUMNS),
    "compute_samples.parquet": ["sample_id", "batch_size", "table", "embedding_dim"],
    "compute_sample_settings.parquet": ["sample_id", "optimizer", "purpose"],
    "compute_costs.parquet": COST_COLUMNS,
}
_CARD_FIELDS = ("format", "stand_in", "backend", "hardware", "protocol", "date", "noise_floor")
_FORMAT = 1
_HOW_TO_RECORD = "record one on a machine with the device (`make gpu-campaign`) and put its folder there"
_QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95}


class RecordingParams(BaseModel):
    """Which recording a run uses.

    Attributes:
        folder: of the recording, absolute or relative to the working directory; null where costs are measured live.
            With a folder the pool and the compute samples are the recording's instead of drawn ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str | None


@dataclass(frozen=True)
class Recording:
    """The content of a recording's folder.

    Attributes:
        folder: where it was read.
        pool: `augment.table_pool`.
        samples: `augment.compute_samples`.
        settings: `augment.compute_sample_settings`.
        costs: `measure.compute_costs`.
        card: device, versions, date, protocol, noise floor (`make_card`).
    """

    folder: Path
    pool: pd.DataFrame
    samples: pd.DataFrame
    settings: pd.DataFrame
    costs: pd.DataFrame
    card: dict[str, Any]


def open_recording(params: RecordingParams | None) -> Recording:
    """Read a recording.

    Raises:
        MeasurementError: none is named, a file, column or field is missing, or it is of another format.
    """
    if params is None or params.folder is None:
        raise MeasurementError(
            "backend recorded needs recording.folder, the folder of a recording; it is null. "
            "Name one (conf/h200 does), or measure live with fbgemm_cpu or fbgemm_cuda"
        )
    folder = Path(params.folder)
    missing = [name for name in (*_FILES, CARD_FILE) if not (folder / name).is_file()]
    if missing:
        raise MeasurementError(f"the recording {folder} lacks {', '.join(missing)}; {_HOW_TO_RECORD}")
    frames = {name: pd.read_parquet(folder / name) for name in _FILES}
    for name, columns in _FILES.items():
        absent = [column for column in columns if column not in frames[name].columns]
        if absent:
            raise MeasurementError(f"{folder / name} lacks the column {absent[0]!r}; {_HOW_TO_RECORD}")
    pool, samples, settings, costs = frames.values()
    return Recording(folder, pool, samples, settings, costs, _read_card(folder / CARD_FILE))


def write_recording(
    folder: Path,
    pool: pd.DataFrame,
    samples: pd.DataFrame,
    settings: pd.DataFrame,
    costs: pd.DataFrame,
    card: Mapping[str, Any],
) -> None:
    """Write a recording; the card, without which nothing reads it, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in zip(_FILES, (pool, samples, settings, costs), strict=True):
        frame.to_parquet(folder / name, index=False, compression="zstd")
    (folder / CARD_FILE).write_text(json.dumps(dict(card), indent=1) + "\n")


def make_card(
    machine: Mapping[str, Any], params: ComputeMeasureParams, noise_floor: Mapping[str, Any], costs: pd.DataFrame, *,
    stand_in: bool, copy_gb_per_s: float | None, seconds: float, known_gaps: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """The data card of a finished campaign.

    Args:
        machine: that measured, `hardware.describe_machine`.
        params: of the campaign.
        noise_floor: `campaign.noise_floor`.
        costs: `measure.compute_costs`.
        stand_in: whether this only stands in for a real recording, as in tests.
        copy_gb_per_s: the device's measured copy bandwidth, bytes read and written: the roofline; None where unknown.
        seconds: time that the campaign's visits took, summed over workers.
        known_gaps: what the recording does not cover, one sentence each.

    Returns:
        A JSON-ready record; `cost_ms` are quantiles of forward + backward over samples.
    """
    known = costs[costs["error"].isna()]
    total_ms = known["forward_ms"] + known["backward_ms"]
    return {
        "format": _FORMAT,
        "stand_in": stand_in,
        "backend": params.backend,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": dict(machine),
        "protocol": params.model_dump(),
        "noise_floor": dict(noise_floor),
        "copy_gb_per_s": copy_gb_per_s,
        "samples": len(costs),
        "failures": len(costs) - len(known),
        "seconds": seconds,
        "cost_ms": {name: float(total_ms.quantile(share)) for name, share in _QUANTILES.items()} if len(known) else {},
        "known_gaps": list(known_gaps),
    }


def recorded_costs(recording: Recording, samples: Sequence[ComputeSample]) -> pd.DataFrame:
    """Look the costs of samples up; nothing is estimated.

    A sample is found by its content: batch size, optimizer, and tables with their profiles, widths and data types,
    whatever their order and column offsets, which a lookup does not depend on.

    Args:
        recording: where to look.
        samples: what to look for.

    Returns:
        `measure.compute_costs`; a sample that the recording lacks is a row with an error and without costs.
    """
    row_of_sample = {name: row for row, name in enumerate(recording.costs["sample_id"].tolist())}
    row_of_content: dict[object, int] = {}
    for sample in compute_samples_from_frame(recording.samples, recording.pool, recording.settings):
        if sample.sample_id in row_of_sample:
            row_of_content.setdefault(_content(sample), row_of_sample[sample.sample_id])
    rows = [row_of_content.get(_content(sample), -1) for sample in samples]
    found = pd.Series([row >= 0 for row in rows], dtype=bool)
    indexed = recording.costs[COST_COLUMNS].reset_index(drop=True)
    costs = indexed.reindex(rows).reset_index(drop=True)
    costs["sample_id"] = [sample.sample_id for sample in samples]
    costs["repeats"] = costs["repeats"].fillna(0).astype("int64")
    error = costs["error"].astype(object).where(costs["error"].notna(), None)
    costs["error"] = error.where(found, f"not in the recording {recording.folder}; only its own samples have costs")
    return costs


def _content(sample: ComputeSample) -> object:
    shards = Counter(
        (t.name, t.num_embeddings, t.pooling_factor, t.unique_rows, t.reuse, t.data_type, shard.embedding_dim)
        for shard in sample.shards
        for t in (shard.table,)
    )
    return sample.batch_size, sample.optimizer, frozenset(shards.items())


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text())
    except ValueError as problem:
        raise MeasurementError(f"{path} is not JSON ({problem}); {_HOW_TO_RECORD}") from problem
    absent = [field for field in _CARD_FIELDS if not isinstance(card, dict) or field not in card]
    if absent:
        raise MeasurementError(f"{path} lacks {absent[0]!r}; {_HOW_TO_RECORD}")
    if card["format"] != _FORMAT:
        raise MeasurementError(f"{path} has format {card['format']!r}, this version reads {_FORMAT}; {_HOW_TO_RECORD}")
    return dict(card)
