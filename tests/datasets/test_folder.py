"""A version of a folder dataset is complete or does not exist; a shipped model or None may replace a missing one."""

from dataclasses import replace

import pytest
from kedro.io import DatasetError, Version

from neuroshard_pipeline.datasets import CostModelDataset, JSONFolderDataset


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


def test_a_shipped_model_takes_the_place_of_a_missing_version(tmp_path):
    def dataset(shipped):
        path, model = f"{tmp_path}/compute_cost_model", "neuroshard_pipeline.cost_models.ComputeCostModel"
        return CostModelDataset(path, model, Version(None, None), shipped=shipped)

    shipped = dataset("h100")
    assert shipped.is_optional
    assert shipped.load().batch_size == 65536
    assert not dataset("another").is_optional
    with pytest.raises(DatasetError):
        dataset(None).load()
    trained = replace(shipped.load(), batch_size=512)
    CostModelDataset(
        f"{tmp_path}/compute_cost_model", "neuroshard_pipeline.cost_models.ComputeCostModel", Version(None, "1")
    ).save(trained)
    assert dataset("h100").load().batch_size == 512


def test_an_optional_model_loads_as_none_until_a_run_has_made_one(tmp_path):
    def dataset(load=None, shipped=None):
        path, model = f"{tmp_path}/comm_cost_model", "neuroshard_pipeline.cost_models.CommCostModel"
        return CostModelDataset(path, model, Version(load, "1"), shipped=shipped, optional=True)

    assert dataset().is_optional
    assert dataset().load() is None
    shipped = dataset(shipped="h100").load()
    assert shipped.batch_size == 65536
    with pytest.raises(DatasetError, match="2026"):  # a version that the user names must exist
        dataset(load="2026").load()
    dataset().save(replace(shipped, batch_size=512))
    assert dataset().load().batch_size == 512
