import pandas as pd
import pytest
from kedro.io import DatasetError, Version

from neuroshard_pipeline.datasets import AtomicParquetDataset, OptionalParquetDataset


def test_the_newest_version_or_an_empty_frame(tmp_path):
    path = str(tmp_path / "samples.parquet")
    missing = OptionalParquetDataset(filepath=path, version=Version(None, None))
    assert not missing.exists()
    assert missing.load().empty
    for version in ("2026-01-01", "2026-01-02"):
        writer = AtomicParquetDataset(filepath=path, version=Version(None, version))
        writer.save(pd.DataFrame({"version": [version]}))
    (tmp_path / "samples.parquet/2026-01-03").mkdir()  # a run that was killed before it wrote the file
    found = OptionalParquetDataset(filepath=path, version=Version(None, None))
    assert found.exists()
    assert found.load()["version"].tolist() == ["2026-01-02"]
    pinned = OptionalParquetDataset(filepath=path, version=Version("2026-01-01", None))
    assert pinned.load()["version"].tolist() == ["2026-01-01"]


def test_a_pinned_version_that_is_missing_is_refused(tmp_path):
    pinned = OptionalParquetDataset(filepath=str(tmp_path / "samples.parquet"), version=Version("2026-01-01", None))
    with pytest.raises(DatasetError):
        pinned.load()


def test_it_is_never_written(tmp_path):
    with pytest.raises(DatasetError, match="another dataset of the catalog writes it"):
        OptionalParquetDataset(filepath=str(tmp_path / "samples.parquet")).save(pd.DataFrame())
