"""A dataset for a file that need not exist."""

import pandas as pd

from neuroshard_pipeline.datasets.atomic import AtomicParquetDataset


class OptionalParquetDataset(AtomicParquetDataset):
    """A read-only, versioned Parquet file. It loads as an empty frame if there is no version of it.

    A run that reads this dataset can start without the file. A version that the user pins must exist, however.
    """

    #: The checks before a run (`pipelines.preflight`) do not stop it if this dataset is missing.
    is_optional = True

    def load(self) -> pd.DataFrame:
        """Load the pinned or newest version."""
        if not self._exists() and not (self._version and self._version.load):
            return pd.DataFrame()
        return AtomicParquetDataset.load.__wrapped__(self)

    def save(self, data: pd.DataFrame) -> None:
        """Refuse, because another dataset writes the file."""
        raise NotImplementedError(f"{self._filepath} is read-only here: another dataset of the catalog writes it")
