"""Kedro datasets of this project; that of figures is in `figures`."""

from neuroshard_pipeline.datasets.atomic import AtomicJSONDataset, AtomicParquetDataset, AtomicTextDataset
from neuroshard_pipeline.datasets.folder import CostModelDataset, JSONFolderDataset
from neuroshard_pipeline.datasets.records import RecordFolderDataset
from neuroshard_pipeline.datasets.tables import TableFileDataset

__all__ = [
    "AtomicJSONDataset",
    "AtomicParquetDataset",
    "AtomicTextDataset",
    "CostModelDataset",
    "JSONFolderDataset",
    "RecordFolderDataset",
    "TableFileDataset",
]
