"""A version of a folder dataset is complete or does not exist."""

import pytest
from kedro.io import DatasetError, Version

from neuroshard_pipeline.datasets import JSONFolderDataset


def test_documents_round_trip_and_versions_stay(tmp_path):
    path = str(tmp_path / "plans")
    for version in ("2026-01-01", "2026-01-02"):
        JSONFolderDataset(path, Version(None, version)).save({"one": {"made": version}, "two": []})
    assert JSONFolderDataset(path, Version(None, None)).load() == {"one": {"made": "2026-01-02"}, "two": []}
    assert JSONFolderDataset(path, Version("2026-01-01", None)).load()["one"] == {"made": "2026-01-01"}


def test_a_failed_save_leaves_no_version_behind(tmp_path):
    path = str(tmp_path / "plans")
    JSONFolderDataset(path, Version(None, "2026-01-01")).save({"one": 1})
    with pytest.raises(DatasetError):
        JSONFolderDataset(path, Version(None, "2026-01-02")).save({"one": 1, "two": object()})
    assert JSONFolderDataset(path, Version(None, None)).load() == {"one": 1}
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["one.json"]
