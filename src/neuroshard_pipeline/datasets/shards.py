"""The raw record of a measurement campaign: a folder of Parquet shards that only ever grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from kedro.io import AbstractDataset
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


class ShardKeysDataset(AbstractDataset[None, frozenset[str]]):
    """The keys of the shards that a folder already holds: what a resumed campaign need not measure again."""

    def __init__(self, path: str, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(path)
        self.metadata = metadata

    def load(self) -> frozenset[str]:
        """Return the keys, as `ShardFolderDataset` spells them."""
        files = self._folder.rglob(f"*{_SUFFIX}")
        return frozenset(file.relative_to(self._folder).as_posix().removesuffix(_SUFFIX) for file in files)

    def save(self, data: None) -> None:
        """Refuse: shards are written by the folder's own dataset."""
        raise NotImplementedError(f"{self._folder} is read-only here; save through ShardFolderDataset")

    def _exists(self) -> bool:
        return True  # an absent folder holds no shards, which is a valid answer

    def _describe(self) -> dict[str, Any]:
        return {"path": str(self._folder)}
