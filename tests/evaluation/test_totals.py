import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.totals import (
    MEASURED_COLUMNS,
    PAPER_PARTS,
    PREDICTED_COLUMNS,
    basis_of,
    cost_table,
    plan_costs_frame,
    plan_totals,
)

from .made_plans import COST, plans


@pytest.fixture
def plan_costs():
    """Two plans on 3 ranks and one on 2 ranks; every part of the cost is a random number."""
    found = [("a", "x", 3), ("a", "y", 3), ("b", "x", 2)]
    rows = [(task_id, sharder, rank, at) for at, (task_id, sharder, ranks) in enumerate(found) for rank in range(ranks)]
    frame = pd.DataFrame(rows, columns=["task_id", "sharder", "rank", "predicted_step_ms"]).astype(
        {"predicted_step_ms": float}
    )
    parts = [*PREDICTED_COLUMNS, *MEASURED_COLUMNS]
    frame[parts] = np.random.default_rng(0).uniform(0.5, 2.0, (len(rows), len(parts)))
    return frame.assign(measured_step_ms=frame["predicted_step_ms"] + 10.0)


def test_totals_have_one_row_per_plan(plan_costs):
    totals = plan_totals(plan_costs)
    assert totals["predicted_step_ms"].tolist() == [0.0, 1.0, 2.0]
    assert totals["measured_step_ms"].tolist() == [10.0, 11.0, 12.0]
    for plan in totals.itertuples():
        ranks = plan_costs.query("task_id == @plan.task_id and sharder == @plan.sharder")
        paper = ranks[[f"predicted_{part}_ms" for part in PAPER_PARTS]].sum(axis=1)
        assert plan.paper_cost_ms == pytest.approx(paper.max())
        assert plan.world_size == len(ranks)


def test_plans_without_some_costs(plan_costs):
    of_y = plan_costs["sharder"] == "y"
    plan_costs.loc[of_y, ["predicted_reduction_ms", "predicted_module_ms", *MEASURED_COLUMNS, "measured_step_ms"]] = (
        np.nan
    )
    totals = plan_totals(plan_costs)
    assert totals["paper_cost_ms"].notna().all()
    assert totals["measured_step_ms"].isna().tolist() == [False, True, False]
    assert (basis_of(totals), basis_of(totals[1:2])) == ("measured", "predicted")


def test_plan_costs_join_predictions_with_measurements():
    measured = pd.DataFrame({"task_id": "first", "sharder": "two", "rank": [0, 1, 2], "measured_step_ms": 7.0})
    costs = plan_costs_frame(plans(), measured.assign(measured_compute_ms=[1.0, 2.0, 3.0]))
    assert costs["predicted_step_ms"].unique().tolist() == [COST.embedding_cost_ms]
    two = costs[costs["sharder"] == "two"]
    assert two["measured_compute_ms"].tolist() == [1.0, 2.0, 3.0]
    assert two["measured_step_ms"].tolist() == [7.0] * 3
    assert costs.loc[costs["sharder"] != "two", "measured_step_ms"].isna().all()
    assert list(plan_costs_frame([]).columns) == list(costs.columns)


def test_the_cost_table_has_a_row_per_task_and_a_column_per_sharder():
    rows = [("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 3.0), ("c", "y", np.nan)]
    costs = cost_table(pd.DataFrame(rows, columns=["task_id", "sharder", "paper_cost_ms"]), ["y", "x"], "paper_cost_ms")
    assert costs.columns.tolist() == ["y", "x"]
    assert costs.loc["a"].tolist() == [2.0, 1.0]
    assert costs.dropna().index.tolist() == ["a"]
