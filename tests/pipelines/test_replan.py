"""`kedro run --pipeline replan` from a stored plan and from ids of two days, with the shipped models of the H100."""

import json
import re

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, bootstrap, quick_search
from kedro.framework.session import KedroSession
from row_popularity import row_popularity
from sequence_draws import SequenceIds, sequence_tables

import neuroshard_pipeline as ns
from neuroshard_pipeline.pipelines.preflight import PreflightError
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json, plan_to_json

BATCH = 8192
(TABLE,) = sequence_tables("steep", [100], [128], [100_000], BATCH)


def write_day(path, swapped_share, seed):
    """Two batches of ids in the format of the pipeline, one list per sample."""
    source = SequenceIds(TABLE, row_popularity("steep", TABLE.num_embeddings), swapped_share)
    batches = [source.draw(BATCH, seed + number) for number in range(2)]
    lists = [pa.ListArray.from_arrays(batch.offsets.astype("int32"), batch.indices) for batch in batches]
    pq.write_table(pa.table({TABLE.name: pa.chunked_array(lists)}), path)
    return str(path)


def write_tables(path, tables):
    fields = ("num_embeddings", "embedding_dim", "pooling_factor", "pooling")
    rows = [{"table": table.name} | {field: getattr(table, field) for field in fields} for table in tables]
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def run_replan(folder, replan, **task):
    bootstrap()
    task = {"world_size": 16, "batch_size": BATCH, "memory_gib": 0.01, "local_world_size": 8} | task
    params = {"data_root": str(folder / "data"), "plan": {"task": task}, "replan": replan, "search": quick_search()}
    with KedroSession.create(project_path=ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["replan"])
    text = sorted((folder / "data").rglob("replan_table.txt"))[-1].read_text()
    return text, json.loads(sorted((folder / "data").rglob("replan_torchrec_plan.json"))[-1].read_text())


def test_a_stored_plan_of_fewer_tables_and_ranks_is_the_start(tmp_path):
    tables = [ns.Table(f"t{i}", 50_000 * (i + 1), 32, 2.0) for i in range(6)]
    task = ns.ShardingTask(tables[:5], 2, 4096, 2**28)
    document = plan_to_json(ns.shard(task, ns.load_cost_models("h100"), "size_lookup_greedy"))
    (tmp_path / "plan.json").write_text(json.dumps(document))
    text, document = run_replan(
        tmp_path,
        {"present": {"path": str(tmp_path / "plan.json"), "gib_per_rank": [0.01]}},
        tables=write_tables(tmp_path / "tables.csv", tables),
        world_size=4,
        local_world_size=None,
        batch_size=8192,
        memory_gib=0.25,
    )
    assert "the present plan cannot run as it is" in text
    assert "no shards of the table 't5'" in text
    assert "it is a plan for 2 ranks, but the task has 4" in text
    assert all(words in text for words in ("keep", "free", "pays after steps", "Take "))
    plan = plan_from_json(document)
    assert {table.name for table in plan.task.tables} == {table.name for table in tables}
    assert plan.task.world_size == 4


def test_the_ids_of_two_days_give_a_verdict(tmp_path, capfd):
    days = {
        "planned": write_day(tmp_path / "planned.parquet", 0.0, 0),
        "other": write_day(tmp_path / "other.parquet", 0.5, 10),
        "num_batches": 2,
    }
    text, _ = run_replan(tmp_path, {"days": days}, tables=write_tables(tmp_path / "tables.csv", [TABLE]))
    assert text in capfd.readouterr().out
    assert TABLE.name in text
    assert "look up" in text
    assert re.search(r"Take '[a-z ]+': ", text)


def test_missing_input_is_named(tmp_path):
    tables = write_tables(tmp_path / "tables.csv", [TABLE])
    with pytest.raises(PreflightError, match=r"replan\.present\.path is not set; give the plan that runs"):
        run_replan(tmp_path, {}, tables=tables)
    with pytest.raises(PreflightError, match=r"none\.json' \(--params\): no such file"):
        run_replan(tmp_path, {"present": {"path": str(tmp_path / "none.json")}}, tables=tables)
