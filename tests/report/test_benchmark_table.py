import numpy as np
import pytest

from neuroshard_pipeline.report import benchmark_table
from neuroshard_pipeline.report.benchmark_table import noise_note, suite_note, suite_table, suite_verdict
from report.verdicts import FACTORS, HARDWARE, task_costs, verdicts_of


def verdict_of(**kwargs):
    return verdicts_of(task_costs(**kwargs))["suites"]["some"]


def test_the_table_names_every_sharder_the_best_one_and_the_noise_floor():
    text = benchmark_table(verdicts_of(task_costs()), HARDWARE)
    assert all(name in text for name in FACTORS)
    assert text.startswith("== some\nsharder ")
    assert "some: neuroshard_plus is best (mean measured embedding cost of 20 tasks)." in text
    assert text.endswith("compute of a rank 2.1 %.")


def test_the_terminal_gets_one_sentence_per_suite():
    text = benchmark_table(verdicts_of(task_costs()), HARDWARE)
    assert len(text.splitlines()) == 1 + 2 + len(FACTORS) + 1 + 1 + 1 + 1
    assert "confidence interval" not in text


def test_the_cheapest_comes_first_and_sharders_without_a_cost_last():
    verdict = verdict_of(unsolved={(index, "random") for index in range(15)})
    header, *lines = suite_table(verdict)
    assert lines[0][0] == "neuroshard_plus"
    assert lines[-1][:5] == ["random", "5/20", "-", "-", "-"]
    assert all(len(line) == len(header) for line in lines)
    assert "Not compared because they solved too few tasks: random." in suite_note(verdict)


def test_sharders_that_cannot_be_distinguished_are_named_together():
    verdict = verdict_of(factors={"neuroshard": 0.9, "milp": 0.9, "random": 1.5})
    told = suite_verdict(verdict)
    assert told.startswith("there is no measurable difference between the best sharders, neuroshard and milp (mean")


def test_few_tasks_give_no_verdict():
    assert suite_verdict(verdict_of(count=4)) == "there are too few common tasks (4) to name a best sharder."


def test_a_suite_without_a_common_task_says_so():
    verdict = {"common_tasks": 0, "possibly_best": [], "best": None, "tasks": 3, "basis": "measured"}
    verdict |= {"sharders": {"one": {"predicted_ms": None}}, "compared": ["one"], "not_run": ["milp"]}
    assert suite_verdict(verdict) == "no task has a cost of every compared sharder."
    assert suite_note(verdict).startswith("None of the 3 tasks has a cost of every sharder.")
    assert suite_note(verdict).endswith("Not run on this suite because they take too long: milp.")


def test_predicted_costs_are_labelled():
    verdict = verdict_of(is_measured=False)
    assert "No plan of this suite was measured." in suite_note(verdict)
    assert "mean predicted embedding cost" in suite_verdict(verdict)


def test_tasks_that_were_not_measured_are_counted():
    assert "not measured" not in suite_note(verdict_of())
    costs = task_costs()
    left_out = costs["task_id"].isin(["task-00", "task-07"])
    costs.loc[left_out, ["is_measured", "measured_ms", "measured_seeds"]] = [False, np.nan, 0]
    verdict = verdicts_of(costs.astype({"is_measured": bool}))["suites"]["some"]
    assert (verdict["basis"], verdict["common_tasks"], verdict["unmeasured_tasks"]) == ("measured", 18, 2)
    assert "Plans of 2 tasks were not measured, so the comparison leaves them out." in suite_note(verdict)


def test_recorded_and_modelled_costs_are_labelled():
    assert "Not every" not in noise_note(HARDWARE)
    note = noise_note({**HARDWARE, "comm_costs_are": "modelled", "recording": {"folder": "x"}})
    assert note.endswith("compute costs are recorded and communication costs are modelled.")
    nothing_twice = {"noise_floor": {"compute": {}, "comm": {}}}
    assert noise_note(nothing_twice) == "The noise floor is unknown because nothing was measured twice."


def test_whole_steps_have_a_column_of_their_own():
    verdict = verdict_of(is_measured=True)
    assert "predicted step ms" not in suite_table(verdict)[0]
    for values in verdict["sharders"].values():
        values["step_ms"] = 2 * values["predicted_ms"]
    header, *lines = suite_table(verdict)
    assert header[5:8] == ["predicted ms", "predicted step ms", "imbalance"]
    assert [float(line[6]) for line in lines] == pytest.approx([2 * float(line[5]) for line in lines], rel=2e-3)
    assert "adds the input dist" in suite_note(verdict)
