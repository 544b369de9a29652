"""`kedro prune` deletes the records that no campaign uses, or with --busy those of a busy machine, and no others."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from conftest import ROOT, bootstrap
from kedro.framework.session import KedroSession

from neuroshard_pipeline.cli import cli
from neuroshard_pipeline.measurement.identity import Identity, name_of
from neuroshard_pipeline.prune import _campaigns
from neuroshard_pipeline.run_lock import locked

DATASETS = {
    "measure.compute_shards",
    "measure.comm_shards",
    *(f"{stage}.step_records" for stage in ("search", "truth", "benchmark")),
}


def store(folder: Path, campaign: str, identity: Identity | None) -> None:
    """Write two records of a campaign; without an identity, as an older version wrote them."""
    for visit in ("visit-000", "visit-001"):
        path = folder / campaign / visit / "w0-x.parquet"
        path.parent.mkdir(parents=True)
        frame = pd.DataFrame({"sample_id": ["a", "b"]})
        (frame if identity is None else frame.assign(identity=json.dumps(identity))).to_parquet(path)


@pytest.fixture
def stored(tmp_path, monkeypatch) -> tuple[Path, list[Path]]:
    """A data folder with used and unused records in every folder of records, and the folders of the used ones."""
    monkeypatch.chdir(ROOT)
    bootstrap()
    with KedroSession.create(project_path=ROOT, env="test", runtime_params={"data_root": str(tmp_path)}) as session:
        catalog = session.load_context().catalog
        campaigns = _campaigns(catalog.load)
        folders = {name: Path(catalog.get(name)._path) for name in campaigns}
    assert set(campaigns) == DATASETS
    used = []
    for name, identity in campaigns.items():
        other = {**identity, "seed": "77"}
        for campaign_name, stated in ((name_of(identity), identity), (name_of(other), other), ("0123456789ab", None)):
            store(folders[name], campaign_name, stated)
        used.append(folders[name] / name_of(identity))
    return tmp_path, used


def prune(data_root: Path, *options: str, answer: str | None = None) -> Result:
    arguments = ["prune", "--env", "test", "--params", f"data_root={data_root}", *options]
    return CliRunner().invoke(cli, arguments, input=answer)


def campaigns_in(data_root: Path) -> list[Path]:
    """Folders of campaigns that have records."""
    return sorted({path.parents[1] for path in data_root.rglob("*.parquet")})


def test_unused_records_are_listed_and_stay_without_a_yes(stored):
    data_root, used = stored
    before = campaigns_in(data_root)
    result = prune(data_root, answer="n\n")
    assert result.exit_code == 1
    assert result.output.count("seed was 77 and is 0") == len(DATASETS)
    assert result.output.count("older version") == len(DATASETS)
    assert result.output.count(": 2 records, ") == 2 * len(DATASETS)
    assert not any(str(folder) in result.output for folder in used)
    assert campaigns_in(data_root) == before


@pytest.mark.parametrize(("options", "answer"), [(["--yes"], None), ([], "y\n")])
def test_only_unused_records_are_deleted(stored, options, answer):
    data_root, used = stored
    result = prune(data_root, *options, answer=answer)
    assert result.exit_code == 0, result.output
    assert campaigns_in(data_root) == sorted(used)
    assert all(len(list(folder.rglob("*.parquet"))) == 2 for folder in used)
    assert "no unused measurements" in prune(data_root).output


def test_records_are_not_deleted_during_a_run(stored):
    data_root, _ = stored
    before = campaigns_in(data_root)
    with locked(data_root):
        result = prune(data_root, "--yes")
    assert result.exit_code == 1
    assert "is in use by another run" in result.output
    assert campaigns_in(data_root) == before


def test_measurements_of_a_busy_machine_are_deleted_on_request(stored):
    data_root, used = stored
    prune(data_root, "--yes")
    disturbed = [folder / "visit-001" / "w0-x.parquet" for folder in used]
    for path in disturbed:
        pd.read_parquet(path).assign(other_programs=[0.5, 0.5]).to_parquet(path)
    for folder in used:
        quiet = folder / "visit-000" / "w0-x.parquet"
        pd.read_parquet(quiet).assign(other_programs=[0.02, 0.02]).to_parquet(quiet)
    refused = prune(data_root, "--busy", answer="n\n")
    assert refused.output.count(": 1 records, ") == len(DATASETS)
    assert refused.output.count("other programs used more than 10%") == len(DATASETS)
    assert all(path.exists() for path in disturbed)
    assert prune(data_root, "--busy", "--yes").exit_code == 0
    assert not any(path.exists() for path in disturbed)
    assert all((folder / "visit-000" / "w0-x.parquet").exists() for folder in used)
    assert "no disturbed measurements" in prune(data_root, "--busy").output
