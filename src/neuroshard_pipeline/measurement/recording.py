"""Recordings: compute costs that were measured once, on a device that later runs do not have.

A recording is a folder with a pool of tables, the samples, their costs and a data card:

    table_pool.parquet                as `augment.table_pool`
    compute_samples.parquet           as `augment.compute_samples`
    compute_sample_settings.parquet   as `augment.compute_sample_settings`
    compute_costs.parquet             as `measure.compute_costs`
    card.json                         device, protocol and noise floor (`make_card`)
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.parameters import Parameters
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


class RecordingParams(Parameters):
    """The recording that a run uses.

    Attributes:
        folder: folder of the recording, absolute or relative to the working directory. Its table pool and compute
            samples then replace drawn ones. Null if costs are measured.
    """

    folder: str | None


@dataclass(frozen=True)
class Recording:
    """The content of a recording's folder.

    Attributes:
        folder: where the recording is stored.
        pool: `augment.table_pool`.
        samples: `augment.compute_samples`.
        settings: `augment.compute_sample_settings`.
        costs: `measure.compute_costs`.
        card: the data card (`make_card`).
    """

    folder: Path
    pool: pd.DataFrame
    samples: pd.DataFrame
    settings: pd.DataFrame
    costs: pd.DataFrame
    card: Mapping[str, Any]


@dataclass(frozen=True)
class CardNotes:
    """What a data card says about a campaign besides its parameters and results.

    Attributes:
        stand_in: whether the costs are invented, as in tests.
        copy_gb_per_s: measured copy bandwidth of the device, counting bytes read and written; None if unknown.
        seconds: time that the visits took, summed over workers.
        known_gaps: what the recording does not cover, one sentence each.
    """

    stand_in: bool
    copy_gb_per_s: float | None
    seconds: float
    known_gaps: tuple[str, ...]


def open_recording(params: RecordingParams | None) -> Recording:
    """Read a recording.

    Raises:
        MeasurementError: no folder is given, a file, column or field is missing, or the format is another one.
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


def write_recording(recording: Recording) -> None:
    """Write a recording to its folder; the card comes last, because a folder without it cannot be read."""
    recording.folder.mkdir(parents=True, exist_ok=True)
    frames = (recording.pool, recording.samples, recording.settings, recording.costs)
    for name, frame in zip(_FILES, frames, strict=True):
        frame.to_parquet(recording.folder / name, index=False, compression="zstd")
    (recording.folder / CARD_FILE).write_text(json.dumps(dict(recording.card), indent=1) + "\n")


def make_card(
    machine: Mapping[str, Any],
    params: ComputeMeasureParams,
    noise_floor: Mapping[str, Any],
    costs: pd.DataFrame,
    notes: CardNotes,
) -> dict[str, Any]:
    """The data card of a finished campaign, ready for JSON.

    Args:
        machine: the machine that measured (`hardware.describe_machine`).
        params: parameters of the campaign.
        noise_floor: `campaign.CampaignSummary`.
        costs: `measure.compute_costs`; the card's `cost_ms` are quantiles of forward + backward over samples.
        notes: what the card says besides.
    """
    known = costs[costs["error"].isna()]
    total_ms = known["forward_ms"] + known["backward_ms"]
    return {
        "format": _FORMAT,
        "backend": params.backend,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": dict(machine),
        "protocol": params.model_dump(),
        "noise_floor": dict(noise_floor),
        "samples": len(costs),
        "failures": len(costs) - len(known),
        "cost_ms": {name: float(total_ms.quantile(share)) for name, share in _QUANTILES.items()} if len(known) else {},
        **asdict(notes),
    }


def recorded_costs(recording: Recording, samples: Sequence[ComputeSample]) -> pd.DataFrame:
    """Look up the recorded costs of samples; nothing is estimated.

    A sample is found by its content: batch size, optimizer, and the profile, width and data type of every table. The
    order of the tables and their column offsets do not matter, because the cost of a lookup does not depend on them.

    Returns:
        `measure.compute_costs`; a sample that is not in the recording becomes a row with an error and no costs.
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
    costs["error"] = error.where(
        found, f"not in the recording {recording.folder}, which has costs of its own samples only"
    )
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
