import pytest

from neuroshard_pipeline.report.sharder_summary import (
    agreement_note,
    as_sentence,
    comparison_notes,
    cost_note,
    noise_note,
    sharder_table,
)

NOISE = {"tasks": 12, "difference": 0.014, "per_task": 0.02, "other_programs": 0.01, "resolution": 0.011}


def summary_of(*rows, common=3, basis="measured"):
    keys = ("tasks_solved", "tasks_tried", "mean_measured_step_ms", "mean_predicted_step_ms", "mean_seconds_per_task")
    sharders = {name: {**dict(zip(keys, values, strict=True)), "failures": {}} for name, *values in rows}
    told = {"num_tasks": 3, "num_common_tasks": common, "basis": basis, "judge": "Judged by hand.", "noise": NOISE}
    return told | {"sharders": sharders}


OURS = ("neuroshard", 3, 3, 0.8, 0.81, 1.0)
GREEDY = ("dim_greedy", 3, 3, 1.0, 1.01, 0.001)


def test_the_cost_note_says_what_a_step_is_and_who_is_left_out():
    note = cost_note(summary_of(OURS, GREEDY))
    assert "slowest rank: the mean over the 3 tasks that every sharder solved. Judged by hand." in note
    left_out = cost_note(summary_of(OURS, ("random", 1, 3, None, None, 0.1)))
    assert "that every sharder but random solved" in left_out


def test_sharder_table_divides_by_the_cheapest():
    lines = sharder_table(summary_of(GREEDY, OURS))
    assert lines[0] == ["sharder", "solved", "measured step ms", "vs best", "predicted step ms", "s/task"]
    assert [line[0] for line in lines[1:]] == ["neuroshard", "dim_greedy"]
    assert [line[3] for line in lines[1:]] == ["1.000", "1.250"]


def test_sharder_table_has_a_dash_for_missing_values():
    lines = sharder_table(summary_of(("random", 0, 3, None, None, None), common=0))
    assert lines[1] == ["random", "0/3", "-", "-", "-", "-"]


def test_the_noise_of_a_quiet_a_noisy_and_a_busy_run():
    quiet = noise_note(NOISE, 12)
    assert quiet == (
        "Noise of this run: two measurements of the same plan differ by 1.4 % (median over 12 tasks), so differences "
        "below 1.1 % mean nothing on 12 tasks."
    )
    assert "too noisy to tell good sharders apart" in noise_note(NOISE | {"resolution": 0.05}, 12)
    busy = noise_note(NOISE | {"resolution": 0.05, "other_programs": 0.3}, 12)
    assert "Other programs used 30% of the cores" in busy
    assert "make clean" in busy
    assert noise_note(NOISE | {"resolution": None}, 12) == ""


def test_the_agreement_of_predicted_and_measured_steps():
    found = {"plans": 40, "median_ratio": 0.95, "median_error": 0.07, "tau": 0.8, "tau_limit": None}
    assert agreement_note({"agreement": found}) == (
        "The predicted step errs by 7.0 % (median of 40 plans; predicted / measured: 0.95), and Kendall's tau within a "
        "task is 0.80."
    )
    assert "without error would have 0.86" in agreement_note({"agreement": found | {"tau_limit": 0.86}})
    assert "tau" not in agreement_note({"agreement": found | {"tau": None, "tau_limit": 0.86}})
    assert agreement_note({"agreement": found | {"median_error": None}}) == ""


def test_the_notes_compare_the_most_thorough_search_with_the_best_heuristic_the_paper_and_torchrec():
    plus = ("neuroshard_plus", 3, 3, 0.7, 0.7, 2.0)
    rivals = ("random", "neuroshard", "dim_greedy", "torchrec", "torchrec_fitted")
    pairs = [
        {"ours": "neuroshard_plus", "rival": rival, "ratio": 0.9, "statement": f"plus against {rival}"}
        for rival in rivals
    ]
    others = [
        (name, 3, 3, cost, cost, 0.1) for name, cost in (("random", 2.0), ("torchrec", 0.9), ("torchrec_fitted", 1.1))
    ]
    summary = summary_of(OURS, plus, GREEDY, *others) | {"pairs": pairs}
    told = [f"plus against {name}." for name in ("dim_greedy", "neuroshard", "torchrec", "torchrec_fitted")]
    assert comparison_notes(summary) == told
    pairs[1]["ratio"] = None  # no task has costs of both
    assert comparison_notes(summary) == [told[0], *told[2:]]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [("no measurable difference", "No measurable difference."), ("neuroshard costs", "neuroshard costs.")],
)
def test_a_sentence_keeps_the_lower_case_of_a_name(statement, sentence):
    assert as_sentence(statement) == sentence
