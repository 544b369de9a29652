"""Choices of spread tables: estimates made at once equal those made alone; neighbours differ in one table."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.search import spread_estimate
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread_choice import SpreadChoice
from neuroshard_pipeline.search.spread_estimate import SpreadEstimate
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

TABLES = [
    Table("tall", 10_000_000, 64, 20.0),
    Table("wide", 100_000, 256, 5.0),
    Table("words", 50_000, 32, 30.0, pooling="none"),
    Table("songs", 20_000, 32, 10.0, pooling="none"),
    Table("days", 366, 16, 1.0),
    Table("means", 1_000, 16, 2.0, pooling="mean"),
]


@pytest.fixture(scope="module")
def problem():
    task = ShardingTask(TABLES, 8, 4096, 2**36, local_world_size=4)
    return Problem(task, load_cost_models("h100"), WEIGHTS_AND_OPTIMIZER)


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise", "grid_shard"])
def test_costs_of_choices_do_not_depend_on_how_many_are_estimated_at_once(problem, kind, monkeypatch):
    estimate, rng = SpreadEstimate(problem, TABLES), np.random.default_rng(0)
    types = rng.integers(3, size=(200, len(TABLES)))
    types[:3] = np.arange(3)[:, None]  # every table has the same type
    replicas, cut = types == 1, types == 2
    together = estimate.costs_ms(replicas, cut, kind)
    alone = [float(estimate.costs_ms(replicas[at : at + 1], cut[at : at + 1], kind)[0]) for at in range(len(types))]
    assert together == pytest.approx(alone, rel=1e-9)
    assert (together > 0).all()
    monkeypatch.setattr(spread_estimate, "_AT_ONCE", 1000)
    assert estimate.costs_ms(replicas, cut, kind) == pytest.approx(together, rel=1e-9)


def test_neighbours_differ_in_one_table_and_are_in_order_of_cost(problem):
    types = {"tall": "row_wise", "days": "data_parallel"}
    found = SpreadChoice(problem, usable_types).neighbours(types)
    costs = [candidate.estimate_ms for candidate in found]
    assert costs == pytest.approx(sorted(costs))
    changed = {
        (table.name, candidate.types.get(table.name, "column_wise"))
        for candidate in found
        for table in TABLES
        if candidate.types.get(table.name, "column_wise") != types.get(table.name, "column_wise")
    }
    possible = {(table.name, kind) for table in TABLES for kind in usable_types(table, problem)}
    now = {(table.name, types.get(table.name, "column_wise")) for table in TABLES}
    assert changed == possible - now
    assert len(found) == len(changed)
