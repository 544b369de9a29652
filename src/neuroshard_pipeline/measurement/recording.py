"""Recordings: compute costs that were measured once, on a device that later runs do not have.

A recording is a folder with a pool of tables, the samples, their costs and a data card:

    table_pool.parquet                as `augment.table_pool`
    compute_samples.parquet           as `augment.compute_samples`
    compute_sample_settings.parquet   as `augment.compute_sample_settings`
    compute_costs.parquet             as `measure.compute_costs`
    card.json                         device, protocol and noise floor

`benchmarks/gpu/gpu_campaign.py` writes recordings.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.frames import POOL_COLUMNS, compute_samples_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample

CARD_FILE = "card.json"
COST_COLUMNS = ["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"]
FILES = {
    "table_pool.parquet": list(POOL_COLUMNS),
    "compute_samples.parquet": ["sample_id", "batch_size", "table", "embedding_dim"],
    "compute_sample_settings.parquet": ["sample_id", "optimizer", "purpose"],
    "compute_costs.parquet": COST_COLUMNS,
}
_CARD_FIELDS = ("format", "stand_in", "backend", "hardware", "protocol", "date", "noise_floor")
CARD_FORMAT = 1
_HOW_TO_RECORD = "make a recording on a machine with the GPU (`make gpu-campaign`), and name it in recording.folder"


class RecordingParams(Parameters):
    """Where compute costs come from if the run itself does not measure them.

    Attributes:
        folder: folder of the recording, absolute or relative to the working directory. Tables and compute samples are
            then taken from the recording and not drawn. Null if there is no recording.
        modelled_device: name of the GPU in conf/base/parameters_lab.yml (`lab.devices`) that the backend `modelled`
            computes costs for. Null with another backend.
    """

    folder: str | None
    modelled_device: str | None


@dataclass(frozen=True)
class Recording:
    """The content of a recording's folder: the datasets of the same names, and the data card."""

    folder: Path
    pool: pd.DataFrame
    samples: pd.DataFrame
    settings: pd.DataFrame
    costs: pd.DataFrame
    card: Mapping[str, Any]


def open_recording(params: RecordingParams | None) -> Recording:
    """Read a recording.

    Raises:
        MeasurementError: no folder is given, a file, column or field is missing, or the card has an unknown format.
    """
    if params is None or params.folder is None:
        raise MeasurementError(
            "backend recorded needs recording.folder, the folder of a recording; it is null. "
            "Set it (--params recording.folder=FOLDER), or measure with the backend fbgemm_cpu or fbgemm_cuda"
        )
    folder = Path(params.folder)
    missing = [name for name in (*FILES, CARD_FILE) if not (folder / name).is_file()]
    if missing:
        raise MeasurementError(f"the recording {folder} lacks {', '.join(missing)}; {_HOW_TO_RECORD}")
    frames = {name: pd.read_parquet(folder / name) for name in FILES}
    for name, columns in FILES.items():
        absent = [column for column in columns if column not in frames[name].columns]
        if absent:
            raise MeasurementError(f"{folder / name} lacks the column {absent[0]!r}; {_HOW_TO_RECORD}")
    pool, samples, settings, costs = frames.values()
    return Recording(folder, pool, samples, settings, costs, _read_card(folder / CARD_FILE))


def recorded_costs(recording: Recording, samples: Sequence[ComputeSample]) -> pd.DataFrame:
    """Look up the recorded costs of samples; nothing is estimated.

    A sample is found by its content: batch size, optimizer, and the shards. Shards are equal if their rows, their width
    and all fields of their tables are, except for those that the cost of a lookup does not depend on: width of the
    whole table, column offset, module and popularity curve. The order of the shards does not matter either.

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
        (
            replace(shard.table, embedding_dim=shard.embedding_dim, module="", popularity=None),
            shard.row_offset,
            shard.num_rows,
        )
        for shard in sample.shards
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
    if card["format"] != CARD_FORMAT:
        raise MeasurementError(
            f"{path} has format {card['format']!r}, this version reads {CARD_FORMAT}; {_HOW_TO_RECORD}"
        )
    return dict(card)
