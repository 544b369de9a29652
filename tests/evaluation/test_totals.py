import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.totals import (
    MEASURED_COLUMNS,
    MEASURED_PARTS,
    PREDICTED_COLUMNS,
    basis_of,
    cost_table,
    plan_totals,
)


@pytest.fixture
def plan_costs():
    """Two plans on 3 ranks and one on 2 ranks; every part of the cost is a random number."""
    plans = [("a", "x", 3), ("a", "y", 3), ("b", "x", 2)]
    rows = [(task_id, sharder, rank) for task_id, sharder, ranks in plans for rank in range(ranks)]
    frame = pd.DataFrame(rows, columns=["task_id", "sharder", "rank"])
    parts = [*PREDICTED_COLUMNS, *MEASURED_COLUMNS]
    frame[parts] = np.random.default_rng(0).uniform(0.5, 2.0, (len(rows), len(parts)))
    return frame


def test_the_cost_of_a_plan_is_that_of_its_most_expensive_rank(plan_costs):
    totals = plan_totals(plan_costs)
    assert len(totals) == 3
    for plan in totals.itertuples():
        ranks = plan_costs.query("task_id == @plan.task_id and sharder == @plan.sharder").to_dict("records")
        expected = max(sum(rank[f"measured_{part}_ms"] for part in MEASURED_PARTS) for rank in ranks)
        assert plan.measured_ms == pytest.approx(expected)
        assert plan.world_size == len(ranks)


def test_a_rank_without_measurement_leaves_its_plan_without_measured_cost(plan_costs):
    plan_costs.loc[0, "measured_compute_ms"] = np.nan
    totals = plan_totals(plan_costs)
    assert totals["measured_ms"].isna().tolist() == [True, False, False]
    assert totals["predicted_ms"].notna().all()


def test_predicted_and_measured_costs_have_the_same_parts(plan_costs):
    """Input dist and module are in the predicted step only; a plan may have no reductions."""
    costs = dict.fromkeys(MEASURED_COLUMNS, 1.0) | dict.fromkeys(PREDICTED_COLUMNS, 10.0)
    some = plan_costs.assign(**costs)
    of_y = some["sharder"] == "y"
    some.loc[of_y, ["predicted_reduction_ms", "measured_reduction_ms"]] = np.nan
    some["measured_input_dist_ms"] = some["measured_module_ms"] = np.nan
    found = plan_totals(some).set_index(["task_id", "sharder"])
    assert found["measured_ms"].to_dict() == {("a", "x"): 4.0, ("a", "y"): 3.0, ("b", "x"): 4.0}
    assert found["predicted_ms"].to_dict() == {("a", "x"): 40.0, ("a", "y"): 30.0, ("b", "x"): 40.0}
    assert found["step_ms"].to_dict() == {("a", "x"): 60.0, ("a", "y"): 50.0, ("b", "x"): 60.0}


def test_reductions_must_be_measured_for_a_measured_cost(plan_costs):
    plan_costs.loc[1, "measured_reduction_ms"] = np.nan
    assert plan_totals(plan_costs)["measured_ms"].isna().tolist() == [True, False, False]
    plan_costs["predicted_reduction_ms"] = np.nan  # no plan has reductions
    assert plan_totals(plan_costs)["measured_ms"].notna().all()


def test_files_of_older_versions_have_three_parts(plan_costs):
    old = plan_costs.drop(
        columns=[name for name in plan_costs if name.endswith(("input_dist_ms", "reduction_ms", "module_ms"))]
    )
    found = plan_totals(old)
    assert (found["step_ms"] == found["predicted_ms"]).all()
    assert found["measured_ms"].notna().all()


def test_measured_columns_may_be_null_objects(plan_costs):
    plan_costs["measured_compute_ms"] = None
    totals = plan_totals(plan_costs)
    assert totals["measured_ms"].isna().all()
    assert basis_of(totals) == "predicted"


def test_the_cost_table_has_a_row_per_task_and_a_column_per_sharder():
    rows = [("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 3.0), ("c", "y", np.nan)]
    costs = cost_table(pd.DataFrame(rows, columns=["task_id", "sharder", "measured_ms"]), ["y", "x"], "measured_ms")
    assert costs.columns.tolist() == ["y", "x"]
    assert costs.loc["a"].tolist() == [2.0, 1.0]
    assert costs.dropna().index.tolist() == ["a"]
