"""Kedro datasets of this project: atomic versions of stock ones, resumable shard folders, cost models."""

from neuroshard_pipeline.datasets.atomic import (
    AtomicJSONDataset,
    AtomicParquetDataset,
    AtomicPlotlyDataset,
    AtomicTextDataset,
)
from neuroshard_pipeline.datasets.cost_model import CostModelDataset
from neuroshard_pipeline.datasets.shards import ShardFolderDataset
from neuroshard_pipeline.datasets.tables import TableFileDataset

__all__ = [
    "AtomicJSONDataset",
    "AtomicParquetDataset",
    "AtomicPlotlyDataset",
    "AtomicTextDataset",
    "CostModelDataset",
    "ShardFolderDataset",
    "TableFileDataset",
]
