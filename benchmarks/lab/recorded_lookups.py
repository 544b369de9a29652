"""Lookups of a recording (data/01_raw/h200) in the form of published ones, so that a fit can use both."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from published_lookups import PublishedLookup

from neuroshard_pipeline.lab.lookups import lookup_of_shards
from neuroshard_pipeline.measurement import RecordingParams, open_recording
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample

FOLDER = Path(__file__).resolve().parents[2] / "data" / "01_raw" / "h200"
PRESET = "h200"
SOURCE = "this project, recording of an H200"
#: Samples that the fit sees, and further ones, of which the fit knows nothing.
_FITTED, _CHECKED = 600, 1000


def recorded_lookups(fitted: bool, folder: Path = FOLDER) -> list[PublishedLookup]:
    """The samples of a recording that the fit sees (`fitted`), or others."""
    samples, costs = _read(folder)
    return [
        PublishedLookup(
            source=SOURCE if fitted else f"{SOURCE}, other samples",
            where=sample.sample_id,
            gpu="NVIDIA H200",
            preset=PRESET,
            kernel="forward and backward",
            lookup=lookup_of_shards(sample.shards, sample.batch_size, sample.optimizer),
            times_us={
                "forward": 1e3 * costs.loc[sample.sample_id, "forward_ms"],
                "backward": 1e3 * costs.loc[sample.sample_id, "backward_ms"],
            },
        )
        for sample in (samples[:_FITTED] if fitted else samples[_FITTED:])
    ]


@cache
def _read(folder: Path) -> tuple[list[ComputeSample], pd.DataFrame]:
    """The samples that the fit sees, followed by the others in use, and the costs of all samples."""
    recording = open_recording(RecordingParams(folder=str(folder), modelled_device=None))
    names = recording.samples["sample_id"].unique()
    drawn = names[np.random.default_rng(0).permutation(len(names))[: _FITTED + _CHECKED]]
    used = recording.samples[recording.samples["sample_id"].isin(drawn)]
    found = {each.sample_id: each for each in compute_samples_from_frame(used, recording.pool, recording.settings)}
    return [found[name] for name in drawn], recording.costs.set_index("sample_id")
