"""The raw record of a measurement campaign: a folder of Parquet shards that only ever grows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.io import DatasetError
from kedro_datasets.partitions import PartitionedDataset

from neuroshard_pipeline.datasets.atomic import AtomicParquetDataset
from neuroshard_pipeline.errors import MeasurementError

_SUFFIX = ".parquet"


class ShardFolderDataset(PartitionedDataset):
    """Parquet shards below a folder, saved one by one and atomically, loaded lazily.

    A generator node that yields `{key: frame}` saves every shard as it comes, so that a killed run keeps all
    finished ones. An empty or missing folder loads as no shards.
    """

    def __init__(self, path: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(path=path, dataset=AtomicParquetDataset, filename_suffix=_SUFFIX, metadata=metadata)

    def load(self) -> dict[str, Any]:
        """Return `{key: function that loads the frame}` for every shard on disk."""
        self._invalidate_caches()
        if not self._list_partitions():
            return {}
        shards: dict[str, Callable[[], pd.DataFrame]] = PartitionedDataset.load.__wrapped__(self)
        return {key: partial(self._load_shard, key, read) for key, read in shards.items()}

    def _load_shard(self, key: str, read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """One shard.

        Raises:
            MeasurementError: the file cannot be read.
        """
        try:
            return read()
        except DatasetError as problem:
            path = Path(self._path) / f"{key}{_SUFFIX}"
            raise MeasurementError(
                f"{path} cannot be read ({problem.__cause__ or problem}); delete it, the next run measures it again"
            ) from problem

    def save(self, data: dict[str, pd.DataFrame]) -> None:
        """Write the given shards; those already on disk under other keys stay."""
        PartitionedDataset.save.__wrapped__(self, data)
