import json

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.benchmark.judging import best_rival, find_pair, judge
from neuroshard_pipeline.evaluation.benchmark.params import JudgeParams
from neuroshard_pipeline.evaluation.benchmark.wording import benchmark_table

PARAMS = JudgeParams(confidence=0.95, resamples=500, least_tasks=5, least_success=0.5, seed=0)
FACTORS = {"neuroshard_plus": 0.8, "neuroshard": 0.9, "milp": 0.9, "random": 1.5}
HARDWARE = {"noise_floor": {"compute": {"total": {"median": 0.021}}, "comm": {"forward": {}, "backward": {}}}}


def task_costs(count=20, factors=FACTORS, unsolved=(), is_measured=True, noise=0.02):
    """Tasks of very different cost, on which sharders differ by known factors."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        base = float(np.exp(rng.normal(1.0, 1.0)))
        for sharder, factor in factors.items():
            cost = base * factor * float(np.exp(rng.normal(0.0, noise)))
            solved = (index, sharder) not in unsolved
            rows.append(
                {
                    "suite": "some", "group": f"group {index % 2}", "is_measured": is_measured,
                    "task_id": f"task-{index:02d}", "sharder": sharder, "seeds": 1, "seeds_solved": int(solved),
                    "solved": solved, "predicted_ms": cost if solved else np.nan,
                    "measured_ms": cost if solved and is_measured else np.nan,
                    "measured_seeds": int(solved and is_measured), "imbalance": 0.1, "seconds": 0.5,
                    "error": None if solved else "no room",
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def judged(**kwargs):
    found = judge(task_costs(**kwargs), PARAMS)
    json.dumps(found)
    return found["suites"]["some"]


def test_the_best_is_named_and_its_gain_told():
    found = judged()
    assert found["best"] == "neuroshard_plus"
    assert found["sharders"]["neuroshard_plus"]["relative"]["value"] == pytest.approx(1.0, abs=0.01)
    assert found["sharders"]["random"]["relative"]["value"] == pytest.approx(1.5 / 0.8, rel=0.03)
    pair = find_pair(found, "neuroshard_plus", "random")
    assert pair["verdict"] == "cheaper"
    assert pair["low"] < 0.8 / 1.5 < pair["high"]
    assert "below random's on 20 tasks (95 % interval" in pair["statement"]
    assert best_rival(found) == "milp"


def test_nobody_is_best_where_intervals_overlap():
    found = judged(factors={"neuroshard": 0.9, "milp": 0.9, "random": 1.5})
    assert found["best"] is None
    assert sorted(found["not_told_apart"]) == ["milp", "neuroshard"]
    assert find_pair(found, "neuroshard", "milp")["verdict"] == "not told apart"
    assert "cannot be told apart" in find_pair(found, "neuroshard", "milp")["statement"]


def test_only_tasks_that_all_compared_sharders_solved_are_compared():
    hard = {(index, "milp") for index in range(3)}
    found = judged(unsolved=hard | {(index, "random") for index in range(15)})
    assert found["compared"] == ["neuroshard_plus", "neuroshard", "milp"]
    assert found["common_tasks"] == 17
    assert found["sharders"]["random"] == {
        **found["sharders"]["random"], "solved": 5, "tried": 20, "cost_ms": None, "relative": None
    }  # fmt: skip
    assert find_pair(found, "neuroshard", "random")["tasks"] == 5
    assert find_pair(found, "neuroshard_plus", "neuroshard")["tasks"] == 20
    assert found["groups"]["group 0"]["solved"]["milp"] == 8


def test_few_tasks_give_no_verdict():
    found = judged(count=4)
    assert found["best"] is None
    assert found["not_told_apart"] == []
    pair = find_pair(found, "neuroshard_plus", "random")
    assert (pair["verdict"], pair["low"]) == ("too few tasks", None)
    assert "too few for an interval" in pair["statement"]


def test_what_was_not_measured_is_judged_by_prediction_and_says_so():
    found = judge(task_costs(is_measured=False), PARAMS)
    assert found["suites"]["some"]["basis"] == "predicted"
    told = benchmark_table(found, HARDWARE)
    assert "nothing of this suite was measured" in told
    assert "predicted cost is" in told


def test_no_task_in_common_is_told():
    nobody = {(index, "random") for index in range(20)}
    found = judged(unsolved=nobody)
    pair = find_pair(found, "neuroshard", "random")
    assert (pair["tasks"], pair["ratio"]) == (0, None)
    assert pair["statement"] == "some: no task was solved by both neuroshard and random"


def test_the_table_holds_everyone_and_the_noise():
    told = benchmark_table(judge(task_costs(), PARAMS), HARDWARE)
    assert all(name in told for name in FACTORS)
    assert "Best: neuroshard_plus." in told
    assert "compute of a rank 2.1 %" in told
