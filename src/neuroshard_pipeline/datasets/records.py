"""The records of one or several campaigns: a folder of Parquet files, each with results of a few samples or tasks.

Runs add files and keep the old ones.
"""

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


class RecordFolderDataset(PartitionedDataset):
    """Parquet records below a folder, saved one by one and atomically, and loaded lazily.

    Kedro saves every `{key: frame}` of a generator node as soon as the node yields it, so that a killed run keeps all
    finished records. An empty or missing folder contains no records.
    """

    def __init__(self, path: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(path=path, dataset=AtomicParquetDataset, filename_suffix=_SUFFIX, metadata=metadata)

    def load(self) -> dict[str, Any]:
        """`{key: function that loads the frame}` for every record on disk."""
        self._invalidate_caches()
        if not self._list_partitions():
            return {}
        records: dict[str, Callable[[], pd.DataFrame]] = PartitionedDataset.load.__wrapped__(self)
        return {key: partial(self._load_record, key, read) for key, read in records.items()}

    def _load_record(self, key: str, read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Load one record.

        Raises:
            MeasurementError: the file cannot be read.
        """
        try:
            return read()
        except DatasetError as problem:
            path = Path(self._path) / f"{key}{_SUFFIX}"
            raise MeasurementError(
                f"{path} cannot be read ({problem.__cause__ or problem}); delete it; the next run makes it again"
            ) from problem

    def save(self, data: dict[str, pd.DataFrame]) -> None:
        """Write the given records; records with other keys stay on disk."""
        PartitionedDataset.save.__wrapped__(self, data)
