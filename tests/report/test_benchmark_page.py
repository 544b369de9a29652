import pytest

from neuroshard_pipeline.report import render_benchmark
from neuroshard_pipeline.report.benchmark_page import group_table, headlines
from neuroshard_pipeline.report.figures import comparisons, performance_profile
from report.verdicts import FACTORS, task_costs, verdicts_of

NOT_BY_ALL = {(index, name) for index in range(20) for name in ("random", "milp")}


@pytest.mark.parametrize("kwargs", [{}, {"is_measured": False}, {"count": 3}, {"unsolved": NOT_BY_ALL}])
def test_every_benchmark_has_a_page(kwargs):
    costs = task_costs(**kwargs)
    page = render_benchmark(verdicts_of(costs), costs, {"run_id": "one"})
    assert all(name in page for name in FACTORS)
    assert '<script src="http' not in page
    assert ">nan<" not in page


def test_the_page_states_the_noise_and_a_busy_machine():
    costs = task_costs()
    page = render_benchmark(verdicts_of(costs, other_programs=0.84), costs, {})
    assert "Noise of this run" in page
    assert "Other programs used 84% of the cores" in page


def test_a_performance_profile_ends_at_the_share_of_tasks_solved_within_the_largest_factor():
    costs = task_costs(unsolved={(index, "milp") for index in range(5)})
    profile = performance_profile("some", costs, "measured")
    ends = {trace.name.strip("</b>"): trace.y[-1] for trace in profile.data}
    assert ends["milp"] == 75.0
    assert ends["neuroshard_plus"] == 100.0
    for trace in profile.data:
        assert list(trace.y) == sorted(trace.y)


def test_the_comparison_figure_shows_the_pairs_in_percent():
    verdicts = verdicts_of(task_costs())
    traces = {trace.y[1][0]: trace for trace in comparisons(verdicts, "neuroshard_plus").data}
    assert set(traces) == set(FACTORS) - {"neuroshard_plus"}
    for pair in verdicts["suites"]["some"]["pairs"]:
        if pair["ours"] == "neuroshard_plus":
            trace = traces[pair["rival"]]
            assert trace.x[0] == pytest.approx(100 * (pair["ratio"] - 1))
            assert trace.x[0] + trace.error_x.array[0] == pytest.approx(100 * (pair["high"] - 1))
            assert trace.x[0] - trace.error_x.arrayminus[0] == pytest.approx(100 * (pair["low"] - 1))


def test_a_comparison_of_too_few_tasks_has_an_open_circle_without_interval():
    traces = comparisons(verdicts_of(task_costs(count=3)), "neuroshard_plus").data
    assert len(traces) == len(FACTORS) - 1
    for trace in traces:
        assert list(trace.marker.symbol) == ["circle-open"]
        assert (list(trace.error_x.array), list(trace.error_x.arrayminus)) == ([0], [0])


def test_headlines_name_the_best_rival_and_the_papers_search():
    verdicts = verdicts_of(task_costs())
    rival, paper = headlines(verdicts)
    assert rival.startswith("some: ")
    assert "milp" in rival
    assert "than neuroshard " in paper
    verdict = verdicts["suites"]["some"]
    assert group_table(verdict)[0] == ["sharder", "group 0 (10 of 10)", "group 1 (10 of 10)"]


def test_a_group_that_was_not_solved_throughout_shows_the_number_of_solved_tasks():
    verdict = verdicts_of(task_costs(unsolved={(0, "milp")}))["suites"]["some"]
    lines = {line[0]: line[1:] for line in group_table(verdict)}
    assert lines["milp"][0].endswith(" [9]")
    assert "[" not in lines["milp"][1]
