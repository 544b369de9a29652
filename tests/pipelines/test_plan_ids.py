"""`kedro run --pipeline plan` with a file of ids, with the shipped cost models of the H100."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, bootstrap, quick_search
from kedro.framework.session import KedroSession
from row_popularity import row_popularity
from sequence_draws import SequenceIds, sequence_tables

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.pipelines.preflight import PreflightError
from neuroshard_pipeline.tables.criteo import NUM_CATEGORIES

BATCH = 8192
(TABLE,) = sequence_tables("steep", [100], [128], [100_000], BATCH)


def write_tables(path, names, rows):
    columns = {"num_embeddings": rows, "embedding_dim": 128, "pooling_factor": 1.0, "pooling": "none"}
    pd.DataFrame([{"table": name} | columns for name in names]).to_csv(path, index=False)
    return str(path)


def run_plan(folder, **task):
    bootstrap()
    task = {"world_size": 16, "local_world_size": 8, "batch_size": BATCH, "memory_gib": 0.02, "tiers": True} | task
    plan = {"task": {"num_batches": 2, "rivals": ["dim_greedy"]} | task}
    params = {"data_root": str(folder / "data"), "plan": plan, "search": quick_search()}
    with KedroSession.create(project_path=ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["plan"])
    return [sorted((folder / "data").rglob(name))[-1] for name in ("plan.parquet", "plan_explanation.txt")]


def test_a_parquet_file_of_ids_gives_a_plan_with_tiers(tmp_path):
    source = SequenceIds(TABLE, row_popularity("steep", TABLE.num_embeddings))
    batches = [source.draw(BATCH, seed) for seed in range(2)]
    lists = [pa.ListArray.from_arrays(batch.offsets.astype("int32"), batch.indices) for batch in batches]
    pq.write_table(pa.table({TABLE.name: pa.chunked_array(lists)}), tmp_path / "ids.parquet")
    tables = write_tables(tmp_path / "tables.csv", [TABLE.name], TABLE.num_embeddings)
    plan, words = run_plan(tmp_path, tables=tables, ids=str(tmp_path / "ids.parquet"))
    shards = pd.read_parquet(plan)
    assert {"hot", "cold"} <= set(shards["tier"])
    assert "the curve of 1 sequence table comes from counted ids" in words.read_text()


def test_a_click_log_of_sequence_tables_gives_a_plan_with_tiers(tmp_path):
    """In every feature, nine tenths of the samples have the same category."""
    rng = np.random.default_rng(0)
    shape = (2 * BATCH, NUM_CATEGORIES)
    values = np.where(rng.random(shape) < 0.9, 7, rng.integers(0, 2**31, shape))
    lines = ["\t".join(["0", *["1"] * 13, *[f"{value:x}" for value in row]]) for row in values.tolist()]
    (tmp_path / "day_0").write_text("\n".join(lines) + "\n")
    tables = write_tables(tmp_path / "tables.csv", [f"C{at}" for at in range(NUM_CATEGORIES)], 20_000)
    plan, words = run_plan(
        tmp_path, tables=tables, ids=str(tmp_path / "day_0"), memory_gib=1.0, batch_size=2 * BATCH, num_batches=1
    )
    assert "hot" in set(pd.read_parquet(plan)["tier"])
    assert "the curves of 26 sequence tables come from counted ids" in words.read_text()


def test_bad_files_of_ids_are_named(tmp_path):
    tables = write_tables(tmp_path / "tables.csv", [TABLE.name], TABLE.num_embeddings)
    with pytest.raises(PreflightError, match=r"none\.parquet' \(--params\): no such file"):
        run_plan(tmp_path, tables=tables, ids=str(tmp_path / "none.parquet"))
    pq.write_table(pa.table({TABLE.name: [[1]] * BATCH}), tmp_path / "short.parquet")
    with pytest.raises(TableFileError, match=r"holds 1 whole batches of 8192 samples, not 2; lower plan\.task\."):
        run_plan(tmp_path, tables=tables, ids=str(tmp_path / "short.parquet"))
