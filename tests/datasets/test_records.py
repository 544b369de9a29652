"""Records of a campaign are added one by one and loaded lazily."""

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline
from kedro.runner import SequentialRunner

from neuroshard_pipeline.datasets import RecordFolderDataset
from neuroshard_pipeline.errors import MeasurementError


def test_a_missing_folder_contains_no_records(tmp_path):
    assert RecordFolderDataset(path=str(tmp_path / "none")).load() == {}


def test_records_accumulate_and_load_lazily(tmp_path):
    folder = RecordFolderDataset(path=str(tmp_path))
    folder.save({"hash/visit-0/chunk-0": pd.DataFrame({"x": [1]})})
    folder.save({"hash/visit-1/chunk-0": pd.DataFrame({"x": [2]})})
    records = folder.load()
    folder.save({"hash/visit-1/chunk-0": pd.DataFrame({"x": [3]})})  # a record is read only when its function is called
    assert {key: load()["x"].tolist() for key, load in records.items()} == {
        "hash/visit-0/chunk-0": [1],
        "hash/visit-1/chunk-0": [3],
    }


def test_the_error_of_a_truncated_record_names_the_file_to_delete(tmp_path):
    folder = RecordFolderDataset(path=str(tmp_path))
    folder.save({"hash/visit-0/chunk-0": pd.DataFrame({"x": [1]})})
    path = tmp_path / "hash/visit-0/chunk-0.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MeasurementError, match=f"^{path} cannot be read .*delete it; the next run makes it again$"):
        folder.load()["hash/visit-0/chunk-0"]()


def test_a_generator_node_keeps_what_it_yielded_before_it_failed(tmp_path):
    def measure(numbers):
        for number in numbers:
            if number == 2:
                raise RuntimeError("disturbed")
            yield {f"chunk-{number}": pd.DataFrame({"x": [number]})}

    catalog = DataCatalog({"numbers": MemoryDataset(range(4)), "records": RecordFolderDataset(path=str(tmp_path))})
    with pytest.raises(RuntimeError, match="disturbed"):
        SequentialRunner().run(Pipeline([Node(measure, "numbers", "records")]), catalog)
    assert set(RecordFolderDataset(path=str(tmp_path)).load()) == {"chunk-0", "chunk-1"}
