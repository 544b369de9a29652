import numpy as np
import pytest

from neuroshard_pipeline.report import benchmark_table
from neuroshard_pipeline.report.benchmark_table import (
    benchmark_note,
    suite_note,
    suite_sentences,
    suite_table,
    suite_verdict,
)
from report.verdicts import FACTORS, JUDGE, task_costs, verdicts_of


def verdict_of(**kwargs):
    return verdicts_of(task_costs(**kwargs))["suites"]["some"]


def test_the_table_names_every_sharder_the_best_one_and_the_noise_floor():
    text = benchmark_table(verdicts_of(task_costs()))
    assert all(name in text for name in FACTORS)
    assert text.startswith("== some\nsharder ")
    assert "some: neuroshard_plus is best (mean measured step of 20 tasks)." in text
    assert f"{JUDGE} Noise of this run: two measurements of the same plan differ by 2.1 %" in text


def test_sentences_compare_with_the_best_rival_and_the_papers_search():
    best, rival, paper, note = suite_sentences("some", verdict_of())
    assert best.startswith("some: neuroshard_plus is best")
    assert rival.startswith("neuroshard_plus costs ")
    assert "than milp (20 tasks, measured, 95 % confidence interval " in rival
    assert "than neuroshard (" in paper
    assert note.startswith("Steps are mean measured steps of 20 of 20 tasks")


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
    verdict |= {"sharders": {"one": {"predicted_step_ms": None}}, "compared": ["one"], "not_run": ["milp"]}
    assert suite_verdict(verdict) == "no task has a cost of every compared sharder."
    assert suite_note(verdict).startswith("None of the 3 tasks has a cost of every sharder.")
    assert suite_note(verdict).endswith("Not run on this suite because they take too long: milp.")


def test_predicted_costs_are_labelled():
    verdict = verdict_of(is_measured=False)
    assert "No plan of this suite was measured." in suite_note(verdict)
    assert "mean predicted step" in suite_verdict(verdict)


def test_tasks_that_were_not_measured_are_counted():
    assert "not measured" not in suite_note(verdict_of())
    costs = task_costs()
    left_out = costs["task_id"].isin(["task-00", "task-07"])
    costs.loc[left_out, ["is_measured", "measured_step_ms"]] = [False, np.nan]
    verdict = verdicts_of(costs.astype({"is_measured": bool}))["suites"]["some"]
    assert (verdict["basis"], verdict["common_tasks"], verdict["unmeasured_tasks"]) == ("measured", 18, 2)
    assert "Plans of 2 tasks were not measured, so the comparison leaves them out." in suite_note(verdict)


def test_the_note_tells_a_busy_machine_and_nothing_if_nothing_was_measured_twice():
    assert "Other programs used 84% of the cores" in benchmark_note(verdicts_of(task_costs(), other_programs=0.84))
    assert benchmark_note(verdicts_of(task_costs(), per_task=None)).strip() == JUDGE


def test_the_papers_cost_has_a_column_of_its_own():
    header, *lines = suite_table(verdict_of())
    assert header[5:7] == ["predicted step ms", "paper's cost ms"]
    assert [float(line[6]) for line in lines] == pytest.approx([0.7 * float(line[5]) for line in lines], rel=2e-3)
    assert "which `neuroshard` minimises" in suite_note(verdict_of())
