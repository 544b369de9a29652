"""Samples to data frames: the way back is in `frames`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.tables.samples import TRAINING, CommSample, ComputeSample


def compute_samples_to_frame(samples: Sequence[ComputeSample]) -> pd.DataFrame:
    """`sample_id, batch_size, table, embedding_dim`: one row per shard of a sample."""
    rows = [
        (sample.sample_id, sample.batch_size, shard.table.name, shard.embedding_dim)
        for sample in samples
        for shard in sample.shards
    ]
    return pd.DataFrame(rows, columns=["sample_id", "batch_size", "table", "embedding_dim"])


def compute_settings_to_frame(samples: Sequence[ComputeSample]) -> pd.DataFrame:
    """`sample_id, optimizer, purpose`: one row per sample, all for training."""
    rows = [(sample.sample_id, sample.optimizer, TRAINING) for sample in samples]
    return pd.DataFrame(rows, columns=["sample_id", "optimizer", "purpose"])


def comm_samples_to_frame(samples: Sequence[CommSample]) -> pd.DataFrame:
    """`sample_id, world_size, batch_size, rank, dim_sum, start_skew_ms`: one row per rank of a sample."""
    rows = [
        (sample.sample_id, sample.world_size, sample.batch_size, rank, dim_sum, skew_ms)
        for sample in samples
        for rank, (dim_sum, skew_ms) in enumerate(zip(sample.dim_sums, sample.start_skew_ms, strict=True))
    ]
    columns = ["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"]
    return pd.DataFrame(rows, columns=columns).astype({"start_skew_ms": np.float64})
