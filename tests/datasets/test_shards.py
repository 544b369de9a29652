"""The raw record of a campaign grows shard by shard and tells what it holds."""

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline
from kedro.runner import SequentialRunner

from neuroshard_pipeline.datasets import ShardFolderDataset
from neuroshard_pipeline.errors import MeasurementError


def test_an_absent_folder_holds_no_shards(tmp_path):
    assert ShardFolderDataset(path=str(tmp_path / "none")).load() == {}


def test_shards_accumulate_and_load_lazily(tmp_path):
    folder = ShardFolderDataset(path=str(tmp_path))
    folder.save({"hash/visit-0/chunk-0": pd.DataFrame({"x": [1]})})
    folder.save({"hash/visit-1/chunk-0": pd.DataFrame({"x": [2]})})
    assert {key: load()["x"].tolist() for key, load in folder.load().items()} == {
        "hash/visit-0/chunk-0": [1],
        "hash/visit-1/chunk-0": [2],
    }


def test_a_truncated_shard_is_named_and_shall_be_deleted(tmp_path):
    folder = ShardFolderDataset(path=str(tmp_path))
    folder.save({"hash/visit-0/chunk-0": pd.DataFrame({"x": [1]})})
    path = tmp_path / "hash/visit-0/chunk-0.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MeasurementError, match=f"^{path} cannot be read .*delete it, the next run measures it again$"):
        folder.load()["hash/visit-0/chunk-0"]()


def test_a_generator_node_keeps_what_it_yielded_before_it_failed(tmp_path):
    def measure(numbers):
        for number in numbers:
            if number == 2:
                raise RuntimeError("disturbed")
            yield {f"chunk-{number}": pd.DataFrame({"x": [number]})}

    catalog = DataCatalog({"numbers": MemoryDataset(range(4)), "shards": ShardFolderDataset(path=str(tmp_path))})
    with pytest.raises(RuntimeError, match="disturbed"):
        SequentialRunner().run(Pipeline([Node(measure, "numbers", "shards")]), catalog)
    assert set(ShardFolderDataset(path=str(tmp_path)).load()) == {"chunk-0", "chunk-1"}
