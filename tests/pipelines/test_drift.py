"""`kedro run --pipeline drift` on ids of two days, with the shipped cost models of the H100."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from sequence_draws import SequenceIds, sequence_tables

from neuroshard_pipeline.augment.sequences import row_popularity
from neuroshard_pipeline.pipelines.preflight import PreflightError

BATCH = 16_384
(TABLE,) = sequence_tables("steep", [100], [128], [200_000], BATCH)


def write_day(path, swapped_share, seed):
    """Three batches of ids in the format of the pipeline, one list per sample."""
    source = SequenceIds(TABLE, row_popularity("steep", TABLE.num_embeddings), swapped_share)
    batches = [source.draw(BATCH, seed + number) for number in range(3)]
    lists = [pa.ListArray.from_arrays(batch.offsets.astype("int32"), batch.indices) for batch in batches]
    pq.write_table(pa.table({TABLE.name: pa.chunked_array(lists)}), path)
    return str(path)


def write_tables(path):
    names = {"table": TABLE.name, "num_embeddings": TABLE.num_embeddings, "embedding_dim": 128, "pooling_factor": 100.0}
    pd.DataFrame([names | {"pooling": "none"}]).to_csv(path, index=False)
    return str(path)


def run_drift(folder, days, **task):
    bootstrap_project(ROOT)
    task = {"world_size": 16, "batch_size": BATCH, "memory_gib": 0.02, "local_world_size": 8} | task
    drift = {"days": days | {"num_batches": 3}}
    params = {"data_root": str(folder / "data"), "plan": {"task": task}, "drift": drift}
    with KedroSession.create(project_path=ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["drift"])
    return sorted((folder / "data").rglob("drift_table.txt"))[-1].read_text()


def test_the_pipeline_prints_shares_costs_and_a_verdict(tmp_path, capfd):
    days = {
        "planned": write_day(tmp_path / "planned.parquet", 0.0, 0),
        "other": write_day(tmp_path / "other.parquet", 0.5, 10),
    }
    table = run_drift(tmp_path, days, tables=write_tables(tmp_path / "tables.csv"))
    assert table in capfd.readouterr().out
    assert TABLE.name in table
    assert all(words in table for words in ("hot rows", "as planned, other day", "same cuts", "new plan", "Cut again"))


def test_missing_days_are_named(tmp_path):
    tables = write_tables(tmp_path / "tables.csv")
    with pytest.raises(PreflightError, match=r"drift\.days\.planned is not set; give a click log"):
        run_drift(tmp_path, {}, tables=tables)
    with pytest.raises(PreflightError, match=r"none\.parquet' \(--params\): no such file"):
        run_drift(tmp_path, {"planned": str(tmp_path / "none.parquet")}, tables=tables)
