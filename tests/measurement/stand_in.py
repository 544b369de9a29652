"""Writes a small recording with invented costs, marked as a stand-in; it is not shipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from gpu_campaign import CardNotes, make_card, write_recording

from measurement.conftest import COMPUTE
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples, paper_settings
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.measurement import ComputeMeasureParams, Recording

MACHINE = {"device": "cuda", "gpu_model": "stand-in for a GPU", "cpu_model": "stand-in for a CPU", "libraries": {}}
PARAMS = ComputeMeasureParams(**(COMPUTE | {"backend": "fbgemm_cuda"}))
FLOOR = {"samples": 1, **{part: {"median": 0.01, "p90": 0.02} for part in ("forward", "backward", "total")}}


def write_stand_in(folder: Path, num_tables: int, num_samples: int, batch_size: int) -> None:
    """Write a recording whose costs follow from the numbers of columns and lookups; nothing is measured."""
    pool = generate_pool(PoolParams(num_tables=num_tables, batch_size=batch_size, row_scale=1024, seed=0))
    params = ComputeSampleParams(
        num_samples=num_samples,
        batch_size=batch_size,
        dimensions=(4, 8, 16, 32, 64, 128),
        min_tables=1,
        max_tables=6,
        memory_bytes=2**24,
        seed=0,
    )
    samples = compute_samples(pool, params)
    work = samples["embedding_dim"] * samples["table"].map(pool.set_index("table")["pooling_factor"]) * batch_size
    total = work.groupby(samples["sample_id"], sort=False).sum()
    costs = pd.DataFrame(
        {
            "sample_id": total.index,
            "forward_ms": 0.01 + 1e-6 * total.to_numpy(),
            "backward_ms": 0.02 + 2e-6 * total.to_numpy(),
            "spread_ms": np.full(len(total), 0.001),
            "repeats": np.full(len(total), 6),
            "error": np.full(len(total), None, dtype=object),
        }
    )
    notes = CardNotes(stand_in=True, copy_gb_per_s=None, seconds=0.0, known_gaps=("nothing was measured",))
    card = make_card(MACHINE, PARAMS, FLOOR, costs, notes)
    write_recording(Recording(folder, pool, samples, paper_settings(samples), costs, card))
