"""Kedro datasets of this project: atomic versions of stock ones, resumable shard folders, versioned folders."""

from neuroshard_pipeline.datasets.atomic import (
    AtomicJSONDataset,
    AtomicParquetDataset,
    AtomicPlotlyDataset,
    AtomicTextDataset,
)
from neuroshard_pipeline.datasets.folder import CostModelDataset, JSONFolderDataset
from neuroshard_pipeline.datasets.optional import OptionalParquetDataset
from neuroshard_pipeline.datasets.shards import ShardFolderDataset
from neuroshard_pipeline.datasets.tables import TableFileDataset

__all__ = [
    "AtomicJSONDataset",
    "AtomicParquetDataset",
    "AtomicPlotlyDataset",
    "AtomicTextDataset",
    "CostModelDataset",
    "JSONFolderDataset",
    "OptionalParquetDataset",
    "ShardFolderDataset",
    "TableFileDataset",
]
