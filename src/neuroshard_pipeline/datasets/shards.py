"""The raw record of a measurement campaign: a folder of Parquet shards that only ever grows."""

from __future__ import annotations

from typing import Any

import pandas as pd
from kedro_datasets.partitions import PartitionedDataset

from neuroshard_pipeline.datasets.atomic import AtomicParquetDataset

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
        return PartitionedDataset.load.__wrapped__(self)

    def save(self, data: dict[str, pd.DataFrame]) -> None:
        """Write the given shards; those already on disk under other keys stay."""
        PartitionedDataset.save.__wrapped__(self, data)
