import pytest

from neuroshard_pipeline.report.sharder_summary import (
    as_sentence,
    comparison_notes,
    cost_note,
    headline,
    origin_note,
    ranked_costs,
    sharder_table,
)


def summary_of(*rows, common=3, measured=None):
    keys = ("tasks_solved", "tasks_tried", "mean_measured_ms", "mean_predicted_ms", "mean_seconds_per_task")
    sharders = {name: {**dict(zip(keys, values, strict=True)), "failures": {}} for name, *values in rows}
    measured = common if measured is None else measured
    return {"num_tasks": 3, "num_common_tasks": common, "num_measured_tasks": measured, "sharders": sharders}


OURS = ("neuroshard", 3, 3, 0.8, 0.81, 1.0)
GREEDY = ("dim_greedy", 3, 3, 1.0, 1.01, 0.001)


def test_headline_of_a_win():
    text = headline(summary_of(OURS, GREEDY))
    assert "mean measured embedding cost is 0.800 ms with neuroshard." in text
    assert "The best other sharder is dim_greedy with 1.00 ms; neuroshard is 20 % cheaper." in text
    assert text.endswith("Every sharder solved every task.")


def test_headline_admits_a_loss():
    assert "neuroshard is 25 % more expensive." in headline(summary_of(("neuroshard", 3, 3, 1.25, 1.2, 1.0), GREEDY))


def test_headline_compares_each_of_our_sharders_with_the_best_other_sharder():
    text = headline(summary_of(OURS, ("neuroshard_plus", 3, 3, 0.7, 0.7, 2.0), GREEDY))
    assert "0.700 ms with neuroshard_plus and 0.800 ms with neuroshard." in text
    assert "neuroshard_plus is 30 % cheaper and neuroshard is 20 % cheaper." in text


def test_headline_without_our_sharders_compares_the_two_best():
    text = headline(summary_of(GREEDY, ("random", 3, 3, 2.0, 2.0, 0.1)))
    assert "1.00 ms with dim_greedy. The best other sharder is random with 2.00 ms; dim_greedy is 50 % cheaper." in text


def test_headline_without_another_sharder_compares_nothing():
    assert "best other" not in headline(summary_of(OURS))
    assert headline({"sharders": {}}) == "No sharder was run."


def test_headline_says_predicted_if_nothing_was_measured():
    rows = [("neuroshard", 3, 3, None, 0.81, 1.0), ("dim_greedy", 3, 3, None, 1.01, 0.001)]
    summary = summary_of(*rows, measured=0)
    assert "mean predicted embedding cost" in headline(summary)
    assert cost_note(summary).endswith("No plan was measured.")


def test_the_cost_note_admits_measured_plans_without_a_task_that_was_measured_for_every_sharder():
    """Such a table compares predicted costs, while figures and pairs compare measured ones."""
    rows = [("neuroshard", 3, 3, None, 0.81, 1.0), ("dim_greedy", 3, 3, None, 1.01, 0.001)]
    errors = {"compute": {"count": 4}, "embedding_cost": {"count": 1}}
    note = cost_note(summary_of(*rows, measured=0) | {"prediction_on_plans": errors, "costs_are": {"comm": "modelled"}})
    assert "No plan was measured" not in note
    assert "no task has measured costs of every sharder, so this table compares predicted costs" in note
    assert "Figures" in note
    assert note.endswith("communication costs are modelled.")
    only_parts = {"prediction_on_plans": {"compute": {"count": 4}}}
    assert cost_note(summary_of(*rows, measured=0) | only_parts).endswith("No plan was measured.")


def test_headline_without_a_common_task():
    rows = [("neuroshard", 3, 3, None, None, 1.0), ("random", 0, 3, None, None, 0.1)]
    text = headline(summary_of(*rows, common=0))
    assert "No task was solved by every sharder" in text
    assert text.endswith("neuroshard solved all 3 tasks; random found no plan for 3 of them.")


def test_headline_counts_only_measured_tasks_if_some_measurements_failed():
    assert headline(summary_of(OURS, GREEDY, measured=2)).startswith("On the 2 tasks with costs of every sharder, the")


def test_headline_counts_the_sharders_that_failed_if_they_are_many():
    rows = [(f"s{index}", index, 3, 1.0, 1.0, 0.1) for index in range(3)]
    text = headline(summary_of(*rows))
    assert text.endswith("3 sharders found no plan for up to 3 of 3 tasks.")


def test_headline_of_equal_costs():
    assert "neuroshard is equally expensive." in headline(summary_of(("neuroshard", 3, 3, 1.0, 1.0, 1.0), GREEDY))


def test_cost_note_says_that_fewer_tasks_were_measured():
    assert "means over 2 of these tasks" in cost_note(summary_of(OURS, measured=2))


def test_sharder_table_divides_by_the_cheapest():
    lines = sharder_table(summary_of(GREEDY, OURS))
    assert [line[0] for line in lines] == ["sharder", "neuroshard", "dim_greedy"]
    assert [line[3] for line in lines] == ["vs best", "1.000", "1.250"]


def test_sharder_table_has_a_dash_for_missing_values():
    lines = sharder_table(summary_of(("random", 0, 3, None, None, None), common=0))
    assert lines[1] == ["random", "0/3", "-", "-", "-", "-"]


def test_recorded_and_modelled_costs_are_labelled():
    summary = {"num_common_tasks": 3, "num_measured_tasks": 3, "costs_are": {"compute": "recorded", "comm": "modelled"}}
    note = 'Not every "measured" cost was measured on this machine: '
    assert cost_note(summary).endswith(f"{note}compute costs are recorded and communication costs are modelled.")
    assert origin_note({"compute": "measured", "comm": "modelled"}) == f"{note}communication costs are modelled."
    assert note not in cost_note(summary | {"costs_are": {"compute": "measured", "comm": "measured"}})


def test_the_notes_compare_the_most_thorough_search_with_the_best_rival_and_the_paper():
    plus = ("neuroshard_plus", 3, 3, 0.7, 0.7, 2.0)
    names = [("neuroshard_plus", "random"), ("neuroshard_plus", "neuroshard"), ("neuroshard_plus", "dim_greedy")]
    pairs = [{"ours": a, "rival": b, "ratio": 0.9, "statement": f"{a} against {b}"} for a, b in names]
    summary = summary_of(OURS, plus, GREEDY, ("random", 3, 3, 2.0, 2.0, 0.1)) | {"pairs": pairs}
    told = ["neuroshard_plus against neuroshard.", "neuroshard_plus against dim_greedy."]
    assert comparison_notes(summary) == told
    pairs[1]["ratio"] = None  # no task has costs of both
    assert comparison_notes(summary) == told[1:]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [("no measurable difference", "No measurable difference."), ("neuroshard costs", "neuroshard costs.")],
)
def test_a_sentence_keeps_the_lower_case_of_a_name(statement, sentence):
    assert as_sentence(statement) == sentence


def test_whole_steps_have_a_column_of_their_own():
    """Whole steps are only predicted; the measured and predicted costs beside them cover the same parts of a step."""
    summary = summary_of(OURS, GREEDY)
    assert len(sharder_table(summary)[0]) == 6
    for name, step_ms in (("neuroshard", 1.6), ("dim_greedy", 1.5)):
        summary["sharders"][name]["mean_step_ms"] = step_ms
    header, ours, _ = sharder_table(summary)
    assert header[4:6] == ["predicted ms", "predicted step ms"]
    assert ours[4:6] == ["0.810", "1.600"]
    assert "only the pipeline `truth` measures for these plans" in cost_note(summary)
    assert list(ranked_costs(summary)) == ["neuroshard", "dim_greedy"]
    for values in summary["sharders"].values():
        values["mean_measured_ms"] = None
    assert list(ranked_costs(summary)) == ["dim_greedy", "neuroshard"]
