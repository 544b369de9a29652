import pytest
from evaluation.benchmark.test_judging import FACTORS, HARDWARE, PARAMS, task_costs

from neuroshard_pipeline.evaluation.benchmark.judging import judge
from neuroshard_pipeline.report import render_benchmark
from neuroshard_pipeline.report.benchmark_page import group_table, headlines
from neuroshard_pipeline.report.figures.benchmark import cost_against_time, gains, performance_profile

NOBODY = {(index, name) for index in range(20) for name in ("random", "milp")}


@pytest.mark.parametrize("kwargs", [{}, {"is_measured": False}, {"count": 3}, {"unsolved": NOBODY}])
def test_every_contest_has_a_page(kwargs):
    costs = task_costs(**kwargs)
    page = render_benchmark(judge(costs, PARAMS), costs, HARDWARE, {"run_id": "one"})
    assert all(name in page for name in FACTORS)
    assert '<script src="http' not in page
    assert ">nan<" not in page


def test_a_profile_ends_at_the_share_of_tasks_within_its_edge():
    costs = task_costs(unsolved={(index, "milp") for index in range(5)})
    profile = performance_profile("some", costs, "measured")
    ends = {trace.name.strip("</b>"): trace.y[-1] for trace in profile.data}
    assert ends["milp"] == 75.0
    assert ends["neuroshard_plus"] == 100.0
    for trace in profile.data:
        assert list(trace.y) == sorted(trace.y)


def test_gains_are_those_of_the_pairs():
    judgement = judge(task_costs(), PARAMS)
    points = {trace.y[1][0]: trace.x[0] for trace in gains(judgement, "neuroshard_plus").data}
    for pair in judgement["suites"]["some"]["pairs"]:
        if pair["ours"] == "neuroshard_plus":
            assert points[pair["rival"]] == pytest.approx(100 * (pair["ratio"] - 1))


def test_headlines_name_the_best_rival_and_the_papers_search():
    judgement = judge(task_costs(), PARAMS)
    rival, paper = headlines(judgement)
    assert "milp" in rival
    assert "neuroshard's" in paper
    judged = judgement["suites"]["some"]
    assert group_table(judged)[0] == ["sharder", "group 0 (10 of 10)", "group 1 (10 of 10)"]
    assert len(cost_against_time("some", judged).data) == len(FACTORS)
