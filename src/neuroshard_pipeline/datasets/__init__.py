"""Kedro datasets of this project.

| module | datasets |
| --- | --- |
| `atomic` | Kedro's own datasets for JSON, Parquet, Plotly and text, with atomic saves |
| `folder` | versioned folders: cost models, one JSON document per task |
| `optional` | a Parquet file that need not exist |
| `records` | resumable records of a measurement campaign |
| `tables` | a user's file of embedding tables |
"""

from neuroshard_pipeline.datasets.atomic import (
    AtomicJSONDataset,
    AtomicParquetDataset,
    AtomicPlotlyDataset,
    AtomicTextDataset,
)
from neuroshard_pipeline.datasets.folder import CostModelDataset, JSONFolderDataset
from neuroshard_pipeline.datasets.optional import OptionalParquetDataset
from neuroshard_pipeline.datasets.records import RecordFolderDataset
from neuroshard_pipeline.datasets.tables import TableFileDataset

__all__ = [
    "AtomicJSONDataset",
    "AtomicParquetDataset",
    "AtomicPlotlyDataset",
    "AtomicTextDataset",
    "CostModelDataset",
    "JSONFolderDataset",
    "OptionalParquetDataset",
    "RecordFolderDataset",
    "TableFileDataset",
]
