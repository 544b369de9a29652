import pytest

from neuroshard_pipeline.report.totals import sharder_rows
from neuroshard_pipeline.report.wording import amount, cost_note, decimals_for, headline, number, percent, sharder_table


def summary_of(*rows, common=3, measured=None):
    keys = ("tasks_solved", "tasks_tried", "mean_measured_ms", "mean_predicted_ms", "mean_seconds_per_task")
    sharders = {name: {**dict(zip(keys, values, strict=True)), "failures": {}} for name, *values in rows}
    measured = common if measured is None else measured
    return {"num_tasks": 3, "num_common_tasks": common, "num_measured_tasks": measured, "sharders": sharders}


OURS = ("neuroshard", 3, 3, 0.8, 0.81, 1.0)
GREEDY = ("dim_greedy", 3, 3, 1.0, 1.01, 0.001)


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (3.2149, "3.21"), (12.0, "12.0"), (123.4, "123"), (12345.6, "12,346")]
)
def test_amount_has_three_digits(value, text):
    assert amount(value) == text


@pytest.mark.parametrize(("values", "decimals"), [([], 5), ([None, 0.02], 5), ([0.5, 0.1], 4), ([1, 150], 1)])
def test_decimals_follow_the_largest_value(values, decimals):
    assert decimals_for(values) == decimals


@pytest.mark.parametrize(("share", "text"), [(0.031, "3.1 %"), (0.19, "19 %")])
def test_percent(share, text):
    assert percent(share) == text


def test_headline_of_a_win():
    text = headline(summary_of(OURS, GREEDY))
    assert "mean measured embedding cost is 0.800 ms with neuroshard: 20 % below" in text
    assert "dim_greedy (1.00 ms)" in text
    assert text.endswith("Every sharder solved every task.")


def test_headline_admits_a_loss():
    assert "25 % above the best other sharder, dim_greedy" in headline(
        summary_of(("neuroshard", 3, 3, 1.25, 1.2, 1.0), GREEDY)
    )


def test_headline_compares_ours_with_heuristics_only():
    text = headline(summary_of(OURS, ("neuroshard_plus", 3, 3, 0.7, 0.7, 2.0), GREEDY))
    assert "0.800 ms with neuroshard and 0.700 ms with neuroshard_plus: 20 % and 30 % below the best" in text


def test_headline_says_predicted_where_nothing_was_measured():
    rows = [("neuroshard", 3, 3, None, 0.81, 1.0), ("dim_greedy", 3, 3, None, 1.01, 0.001)]
    summary = summary_of(*rows, measured=0)
    assert "mean predicted embedding cost" in headline(summary)
    assert cost_note(summary).endswith("Nothing was measured.")


def test_headline_without_a_common_task():
    rows = [("neuroshard", 3, 3, None, None, 1.0), ("random", 0, 3, None, None, 0.1)]
    text = headline(summary_of(*rows, common=0))
    assert "No task was solved by every sharder" in text
    assert text.endswith("neuroshard solved all 3 tasks; random found no plan that fits for 3 of them.")


def test_headline_counts_the_sharders_that_failed_where_there_are_many():
    rows = [(f"s{index}", index, 3, 1.0, 1.0, 0.1) for index in range(3)]
    assert headline(summary_of(*rows)).endswith("3 sharders found no plan that fits for up to 3 of 3 tasks.")


def test_headline_when_ours_is_neither_better_nor_worse():
    assert "the same as the best other sharder" in headline(summary_of(("neuroshard", 3, 3, 1.0, 1.0, 1.0), GREEDY))


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0.000"), (0.0004, "<0.001"), (0.0006, "0.001")])
def test_number_never_rounds_something_to_nothing(value, text):
    assert number(value, 3) == text


def test_cost_note_says_when_fewer_tasks_were_measured():
    assert "the 2 of them measured for all" in cost_note(summary_of(OURS, measured=2))


def test_sharder_table_divides_by_the_cheapest():
    lines = sharder_table(sharder_rows(summary_of(GREEDY, OURS)))
    assert [line[0] for line in lines] == ["sharder", "neuroshard", "dim_greedy"]
    assert [line[3] for line in lines] == ["vs best", "1.000", "1.250"]


def test_sharder_table_has_a_dash_for_what_is_missing():
    lines = sharder_table(sharder_rows(summary_of(("random", 0, 3, None, float("nan"), None), common=0)))
    assert lines[1] == ["random", "0/3", "-", "-", "-", "-"]


def test_a_measured_column_that_holds_other_costs_says_so():
    summary = {"num_common_tasks": 3, "num_measured_tasks": 3, "costs_are": {"compute": "recorded", "comm": "modelled"}}
    assert cost_note(summary).endswith("compute is recorded and communication is modelled, not measured here.")
    assert "not measured" not in cost_note(summary | {"costs_are": {"compute": "measured", "comm": "measured"}})
