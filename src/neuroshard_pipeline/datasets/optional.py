"""Data that another pipeline may have written, or not."""

import pandas as pd

from neuroshard_pipeline.datasets.atomic import AtomicParquetDataset


class OptionalParquetDataset(AtomicParquetDataset):
    """A versioned Parquet file that loads as an empty frame if there is no version; read-only.

    A run that reads it does not require it to exist. A version that is pinned must exist.
    """

    #: Hooks do not refuse a run because this dataset is missing.
    is_optional = True

    def load(self) -> pd.DataFrame:
        """Load the pinned or newest version."""
        if not self._exists() and not (self._version and self._version.load):
            return pd.DataFrame()
        return AtomicParquetDataset.load.__wrapped__(self)

    def save(self, data: pd.DataFrame) -> None:
        """Refuse, because another dataset writes the file."""
        raise NotImplementedError(f"{self._filepath} is written under another name")
