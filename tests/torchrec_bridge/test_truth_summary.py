"""Predicted beside measured steps, from steps with known times."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.pipelines.truth.nodes import tabulate_summary
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.truth.params import TruthStepParams
from neuroshard_pipeline.torchrec_bridge.truth.summary import summarise_steps

PARAMS = TruthStepParams(
    backend="gloo",
    threads=1,
    timeout_s=10,
    learning_rate=0.1,
    num_batches=2,
    rounds=4,
    warmup_steps=1,
    steps_per_round=2,
    most_plans_held=4,
    quantile=0.5,
    seed=0,
)
TABLES = tuple(Table(name, 10, 8, 1.0) for name in "abc")
SHARDERS = {"dim_greedy": (0, 1, 1), "embark": (1, 0, 0), "neuroshard_plus": (0, 0, 1), "torchrec": (0, 0, 1)}
PREDICTED = {"dim_greedy": 4.0, "embark": 3.0, "neuroshard_plus": 2.0, "torchrec": 2.0}
MEASURED = {"dim_greedy": 8.0, "embark": 10.0, "neuroshard_plus": 5.0, "torchrec": 5.0}


def solutions(num_tasks: int) -> Solutions:
    """Each task has the same plans; the prediction of every part of a rank is a quarter of that of the rank."""
    plans, attempts = [], [("t0", "milp", 0.1, "no room")]
    for number in range(num_tasks):
        task = ShardingTask(TABLES, 2, 4, 2**20, task_id=f"t{number}")
        for sharder, ranks in SHARDERS.items():
            part = (PREDICTED[sharder] / 4,) * 2
            plans.append(Plan(task, tuple(map(whole, TABLES)), ranks, sharder, PlanCost(part, part, part, part)))
            attempts.append((task.task_id, sharder, 0.1, None))
    return Solutions(tuple(plans), pd.DataFrame(attempts, columns=["task_id", "sharder", "seconds", "error"]))


def steps(num_tasks: int, odd_rounds: dict[str, float]) -> pd.DataFrame:
    """Steps on two ranks, of which rank 1 is slower; a part takes a fixed share, and warm-up steps take longer."""
    rows = []
    for task, sharder in [(f"t{number}", sharder) for number in range(num_tasks) for sharder in SHARDERS]:
        for round_, step, rank in [(r, 3 * r + s, rank) for r in range(4) for s in range(3) for rank in (0, 1)]:
            total = (
                (odd_rounds if round_ % 2 else MEASURED)[sharder] * (0.5, 1.0)[rank] * (100.0 if step % 3 == 0 else 1)
            )
            shares = {"input_dist": 0.1, "lookup_forward": 0.2, "output_dist": 0.3, "backward": 0.4}
            parts = {f"{part}_ms": share * total for part, share in shares.items()}
            parts |= {"lookup_backward_ms": 0.1 * total, "dense_optimizer_ms": 0.0, "step_ms": total}
            row = {"task_id": task, "sharder": sharder, "round": round_, "step": step, "rank": rank, **parts}
            rows.append(row | {"timed": step % 3 > 0})
    return pd.DataFrame(rows)


def test_costs_are_medians_of_the_slowest_rank_and_identical_plans_are_marked():
    found = summarise_steps(steps(1, MEASURED), solutions(1), PARAMS)
    assert json.loads(json.dumps(found)) == found
    plans = {plan["sharder"]: plan for plan in found["plans"]}
    assert {name: plan["measured_ms"] for name, plan in plans.items()} == pytest.approx(MEASURED)
    assert plans["embark"]["ratio"] == pytest.approx(0.3)
    assert [plans[name]["same_plan_as"] for name in SHARDERS] == [None, None, None, "neuroshard_plus"]
    assert found["failures"] == {"milp": 1}


def test_agreement_counts_every_plan_once():
    agreement = summarise_steps(steps(2, MEASURED), solutions(2), PARAMS)["agreement"]
    assert agreement["plans"] == 6
    assert agreement["median_ratio"] == pytest.approx(0.4)
    assert agreement["median_error"] == pytest.approx(0.6)
    assert agreement["tau"] == pytest.approx(1 / 3)  # of three pairs of plans, one has the other order
    assert agreement["tau_of_halves"] == pytest.approx(1.0)
    assert agreement["noise"] == 0.0


def test_the_noise_compares_even_with_odd_rounds():
    reversed_order = {"dim_greedy": 8.0, "embark": 5.0, "neuroshard_plus": 10.0, "torchrec": 10.0}
    agreement = summarise_steps(steps(1, reversed_order), solutions(1), PARAMS)["agreement"]
    assert agreement["tau_of_halves"] == pytest.approx(-1.0)
    assert agreement["noise"] == pytest.approx(0.5)  # |5 / 10 - 1|, |10 / 5 - 1| and 0


def test_parts_add_up_to_the_mean_cost_of_the_ranks():
    parts = summarise_steps(steps(1, MEASURED), solutions(1), PARAMS)["parts"]
    assert parts["input dist"] == {"predicted_ms": None, "measured_ms": pytest.approx(0.1 * 7.0 * 0.75)}
    predicted = sum(part["predicted_ms"] or 0.0 for part in parts.values())
    measured = sum(part["measured_ms"] or 0.0 for part in parts.values())
    assert predicted == pytest.approx(np.mean(list(PREDICTED.values())))
    assert measured == pytest.approx(np.mean(list(MEASURED.values())) * 0.75)


def test_our_sharder_is_compared_with_every_rival_and_the_table_shows_it():
    found = summarise_steps(steps(5, MEASURED), solutions(5), PARAMS)
    pairs = {pair["rival"]: pair for pair in found["pairs"]}
    assert set(pairs) == {"milp", "dim_greedy", "embark", "torchrec"}
    assert pairs["embark"]["ratio"] == pytest.approx(0.5)
    assert pairs["embark"]["predicted_ratio"] == pytest.approx(2 / 3)
    assert pairs["embark"]["verdict"] == "cheaper"
    lines = tabulate_summary(found).splitlines()
    (embark,) = [line.split() for line in lines if line.startswith("embark")]
    assert embark == ["embark", "3.00", "10.00", "0.667", "0.500", "0.500..0.500"]
    assert "milp: no plan for 1 of 5 tasks" in lines
