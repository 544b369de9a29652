"""Kedro datasets of this project."""

from neuroshard_pipeline.datasets.atomic import (
    AtomicJSONDataset,
    AtomicParquetDataset,
    AtomicPlotlyDataset,
    AtomicTextDataset,
)
from neuroshard_pipeline.datasets.folder import CostModelDataset, JSONFolderDataset
from neuroshard_pipeline.datasets.records import RecordFolderDataset
from neuroshard_pipeline.datasets.tables import TableFileDataset

__all__ = [
    "AtomicJSONDataset",
    "AtomicParquetDataset",
    "AtomicPlotlyDataset",
    "AtomicTextDataset",
    "CostModelDataset",
    "JSONFolderDataset",
    "RecordFolderDataset",
    "TableFileDataset",
]
