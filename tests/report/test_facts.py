import pandas as pd

from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.report.facts import (
    accuracy_table,
    attempt_failures,
    failure_messages,
    measurement_table,
    nested_rows,
    noise_floors,
    plan_accuracy_table,
    rank_noise_floors,
    task_table,
    type_table,
)

ACCURACY = {"mape": 0.0612, "median_ape": 0.05, "r2": 0.98712, "kendall_tau": float("nan"), "noise_floor": None}


def test_accuracy_table_shows_shares_as_percentages():
    header, line = accuracy_table({"comm_forward": {**ACCURACY, "n_test": 1234, "epochs": 3}})
    assert header == ["model", "mean error", "median error", "noise floor", "R²", "Kendall's τ", "samples"]
    assert line == ["comm forward", "6.1 %", "5.0 %", "-", "0.987", "-", "1,234"]


def test_plan_accuracy_table_counts_and_leaves_out_what_no_part_has():
    errors = {"compute": {"mape": 0.02, "bias": -0.01, "count": 1500}, "embedding_cost": {"mape": 0.03, "count": 4}}
    header, compute, total = plan_accuracy_table({"prediction_on_plans": errors})
    assert header == ["part", "mean error", "bias", "compared"]
    assert compute == ["compute", "2.0 %", "-1.0 %", "1,500"]
    assert total == ["embedding cost", "3.0 %", "-", "4"]
    assert plan_accuracy_table({}) is None


def test_noise_floor_of_a_part_is_that_of_its_model():
    metrics = {"compute": {"noise_floor": 0.01}, "comm_forward": {"noise_floor": 0.2}, "comm_backward": ACCURACY}
    assert noise_floors(metrics) == {"compute": 0.01, "comm_forward": 0.2}
    assert rank_noise_floors(metrics) == {"compute": 0.01, "forward_comm": 0.2}


def test_measurement_table_counts_samples_not_ranks(inputs):
    rows = {line[0]: line[1:] for line in measurement_table(inputs.compute_costs, inputs.comm_costs, inputs.hardware)}
    assert rows["samples"] == ["400", "120"]
    assert rows["samples that failed"] == ["1", "0"]
    assert rows["visits per sample"] == ["3", "-"]
    assert rows["noise floor: 90th percentile"] == ["8.3 %", "8.3 %"]
    assert "cores used by other programs" not in rows


def test_measurement_table_shows_how_busy_the_machine_was(inputs):
    hardware = {"other_programs": {"compute": 0.52, "comm": None}}
    rows = {line[0]: line[1:] for line in measurement_table(inputs.compute_costs, inputs.comm_costs, hardware)}
    assert rows["cores used by other programs"] == ["52 %", "-"]


def test_measurement_table_of_a_campaign_in_which_every_compute_sample_failed(inputs):
    failed = inputs.compute_costs.assign(error="no memory")
    rows = {line[0]: line[1:] for line in measurement_table(failed, inputs.comm_costs, {})}
    assert rows["samples that failed"] == ["400", "0"]
    assert rows["forward cost, ms: median"][0] == "-"
    assert not [name for name in rows if name.startswith("noise floor")]


def test_samples_measured_once_have_no_spread(inputs):
    once = inputs.compute_costs.assign(spread_ms=float("nan"), repeats=1)
    rows = {line[0]: line[1:] for line in measurement_table(once, inputs.comm_costs, {"noise_floor": None})}
    assert rows["spread of visits: median"][0] == "-"


def test_failure_messages_are_counted():
    compute = pd.DataFrame({"error": ["a", "b", "a", None, ""]})
    assert failure_messages(compute, pd.DataFrame({"error": ["a", None]})) == [("a", 3), ("b", 1)]


def test_task_table_stars_the_cheapest(inputs):
    header, *lines = task_table(plan_totals(inputs.plan_costs), ["random", "neuroshard"])
    assert header == ["task", "ranks", "random", "neuroshard"]
    assert [line[1] for line in lines] == ["4", "4", "4", "8", "8"]
    assert all(line[3].endswith(" *") and not line[2].endswith("*") for line in lines)


def test_attempt_failures_name_sharder_task_and_reason():
    summary = {"sharders": {"random": {"failures": {"task-1": "12 MiB missing"}}, "neuroshard": {"failures": {}}}}
    assert attempt_failures(summary)[1:] == [["random", "task-1", "12 MiB missing"]]


def test_nested_rows_show_any_json():
    value = {"cpu": {"name": "x", "cores": 65536, "smt": True}, "runs": [{"id": 1}], "sizes": [1, 2.5], "none": None}
    assert nested_rows({**value, "empty": {}}) == [
        (0, "cpu", ""),
        (1, "name", "x"),
        (1, "cores", "65,536"),
        (1, "smt", "yes"),
        (0, "runs", ""),
        (1, "1", ""),
        (2, "id", "1"),
        (0, "sizes", "1, 2.5"),
        (0, "none", "-"),
        (0, "empty", "none"),
    ]


def test_tables_are_counted_by_sharding_type(inputs, whole):
    """A table counts once, however many shards it has; if all are column-wise, there is nothing to show."""
    assert type_table(inputs.plans) is None
    header, *lines = type_table(whole.plans)
    assert header == ["sharder", "whole", "column_wise", "row_wise", "data_parallel"]
    counts = {name: dict(zip(header[1:], map(int, row), strict=True)) for name, *row in lines}
    tables = len(inputs.sharding_tasks)
    assert counts["random"] == {"whole": tables, "column_wise": 0, "row_wise": 0, "data_parallel": 0}
    assert sum(counts["neuroshard"].values()) == tables
    tasks = inputs.sharding_tasks["task_id"].nunique()
    assert counts["neuroshard"]["row_wise"] == counts["neuroshard"]["data_parallel"] == tasks
