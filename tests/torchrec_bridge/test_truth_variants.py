"""Variants of a sharder's plans with replicas and row shards."""

from __future__ import annotations

import pandas as pd
from search.small_models import small_models

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.truth import variants
from neuroshard_pipeline.torchrec_bridge.truth.variants import with_variants

TABLES = (
    Table("small", 8, 4, 9.0),
    Table("long", 500, 8, 3.0),
    Table("wide", 300, 32, 1.0),
    Table("one row", 1, 4, 1.0),
)
NAMES = ["small tables data_parallel", "most ids row_wise", "all row_wise", "all three types"]


def solutions(memory_bytes: int) -> Solutions:
    task = ShardingTask(TABLES, 2, 16, memory_bytes, task_id="t")
    plans = tuple(Plan(task, tuple(map(whole, TABLES)), (0, 1, 0, 1), name) for name in ("ours", "theirs"))
    attempts = pd.DataFrame([("t", plan.sharder, 0.1, None) for plan in plans])
    return Solutions(plans, attempts.set_axis(["task_id", "sharder", "seconds", "error"], axis=1))


def types_of(plan: Plan) -> dict[str, str]:
    return {shard.table.name: shard.sharding_type for shard in plan.shards}


def test_variants_change_the_types_of_some_tables_of_one_sharder(monkeypatch):
    monkeypatch.setattr(variants, "_MOST_IDS", 2)
    found = with_variants(solutions(2**30), "ours", small_models())
    assert [plan.sharder for plan in found.plans] == ["ours", "theirs", *NAMES]
    assert found.attempts["sharder"].tolist() == ["ours", "theirs", *NAMES]
    replicated, most_ids, by_rows, mixed = (types_of(plan) for plan in found.plans[2:])
    columns = dict.fromkeys(("small", "long", "wide", "one row"), "column_wise")
    assert replicated == columns | {"small": "data_parallel", "one row": "data_parallel"}
    assert most_ids == columns | {"small": "row_wise", "long": "row_wise"}
    assert by_rows == dict.fromkeys(columns, "row_wise") | {"one row": "column_wise"}
    assert mixed == replicated | {"long": "row_wise", "wide": "row_wise"}


def test_a_variant_without_room_is_a_failed_attempt():
    room = max(solutions(2**30).plans[0].memory_bytes)
    found = with_variants(solutions(room), "ours", small_models())
    failed = found.failures
    assert set(failed["sharder"]) <= set(NAMES)
    assert failed["error"].str.contains("bytes too many").all()
    assert len(failed) == len(NAMES) + 2 - len(found.plans) > 0


def test_no_variants_are_added_without_a_sharder():
    given = solutions(2**30)
    assert with_variants(given, None, small_models()) == given
