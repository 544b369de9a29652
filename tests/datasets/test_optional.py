import pytest
from kedro.io import DatasetError

from neuroshard_pipeline.datasets import NewestJSONDataset


def test_the_newest_version_or_nothing(tmp_path):
    dataset = NewestJSONDataset(str(tmp_path / "summary.json"))
    assert not dataset.exists()
    assert dataset.load() == {}
    for version in ("2026-01-01", "2026-01-02"):
        folder = tmp_path / "summary.json" / version
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(f'{{"version": "{version}"}}')
    (tmp_path / "summary.json/2026-01-03").mkdir()  # a run that was killed before it wrote the file
    assert dataset.exists()
    assert dataset.load() == {"version": "2026-01-02"}


def test_it_is_never_written(tmp_path):
    with pytest.raises(DatasetError, match="written under another name"):
        NewestJSONDataset(str(tmp_path / "summary.json")).save({})
