"""Timed steps of plans are reduced to costs, by sharder and by rank, and to the noise of their measurement."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.steps import AGAIN, measured_costs, noise_of, plans_to_time, resolution, step_costs

from .made_plans import plans


def steps_of(costs, rounds=4, other_programs=0.0):
    """Steps of plans on three ranks. `costs` maps sharders to the ms of every round, which half of the ranks take."""
    rows = [
        ("first", sharder, number, step, rank, ms * (1.0 if rank else 0.5), step > 0)
        for sharder, of_rounds in costs.items()
        for number, ms in enumerate(of_rounds[:rounds])
        for step in range(3)
        for rank in range(3)
    ]
    frame = pd.DataFrame(rows, columns=["task_id", "sharder", "round", "step", "rank", "step_ms", "timed"])
    frame.loc[~frame["timed"], "step_ms"] = 1e6  # warm-up steps do not count
    parts = {"input_dist_ms": 0.1, "lookup_forward_ms": 0.2, "output_dist_ms": 0.3, "backward_ms": 0.4}
    parts |= {"lookup_backward_ms": 0.25, "dense_optimizer_ms": 0.05}
    return frame.assign(
        other_programs=other_programs, **{name: share * frame["step_ms"] for name, share in parts.items()}
    )


def twins():
    """The plans, and one that is equal to the first."""
    return [*plans(), dataclasses.replace(plans()[0], sharder="neuroshard")]


def test_equal_plans_are_timed_once_and_one_plan_of_every_task_twice():
    timed = [plan.sharder for plan in plans_to_time(twins())]
    assert timed == ["one", "two", "three", f"one{AGAIN}"]
    ours = [dataclasses.replace(plan, sharder="neuroshard_plus") if plan.sharder == "two" else plan for plan in plans()]
    assert plans_to_time(ours)[-1].sharder == f"neuroshard_plus{AGAIN}"
    assert plans_to_time([]) == []


def test_the_cost_of_a_plan_is_a_quantile_of_its_slowest_ranks_steps():
    steps = steps_of({"one": [4.0, 1.0, 2.0, 3.0], "two": [8.0] * 4, "three": [5.0] * 4})
    costs = measured_costs(steps, twins(), 0.5)
    assert costs.groupby("sharder")["measured_step_ms"].unique().map(list).to_dict() == {
        "one": [2.5], "two": [8.0], "three": [5.0], "neuroshard": [2.5],
    }  # fmt: skip
    assert len(costs) == 4 * 3
    rank_0 = costs[(costs["sharder"] == "two") & (costs["rank"] == 0)].iloc[0]
    found = rank_0.filter(like="measured").drop("measured_step_ms").to_dict()
    assert found == pytest.approx(
        {
            "measured_compute_ms": 4.0 * 0.45,
            "measured_forward_comm_ms": 4.0 * 0.3,
            "measured_backward_comm_ms": 4.0 * 0.1,
            "measured_input_dist_ms": 4.0 * 0.1,
            "measured_module_ms": 4.0 * 0.05,
        }
    )
    assert measured_costs(pd.DataFrame(), plans(), 0.5).empty


def test_plans_under_which_a_rank_failed_have_no_cost():
    failed = pd.DataFrame([{"task_id": "first", "sharder": "two", "timed": True, "error": "a rank died"}])
    steps = pd.concat([steps_of({"one": [1.0] * 4}).assign(error=None), failed], ignore_index=True)
    assert set(measured_costs(steps, plans(), 0.25)["sharder"]) == {"one"}
    assert step_costs(steps, 0.25).dropna().index.tolist() == [("first", "one")]


def test_noise_is_the_difference_of_two_measurements_of_one_plan():
    steps = steps_of({"one": [1.0] * 4, "two": [3.0] * 4, f"one{AGAIN}": [1.1] * 4}, other_programs=0.25)
    noise = noise_of(steps, 0.25)
    assert (noise["tasks"], noise["other_programs"]) == (1, 0.25)
    assert noise["difference"] == pytest.approx(0.1)
    assert resolution(noise, 1) == pytest.approx(1.1**1.96 - 1)
    assert resolution(noise, 16) == pytest.approx(1.1 ** (1.96 / 4) - 1)
    assert resolution(noise, 0) is None
    unknown = noise_of(pd.DataFrame(), 0.25)
    assert unknown["tasks"] == 0
    assert resolution(unknown, 5) is None


def test_the_resolution_covers_the_differences_of_equal_plans():
    """Of many runs in which all sharders have equal plans, about one in 20 shows a larger difference."""
    rng, beyond = np.random.default_rng(0), []
    for _ in range(400):
        noisy = rng.lognormal(0.0, 0.05, (3, 40))
        noise = {"per_task": float(np.sqrt(np.mean(np.log(noisy[0] / noisy[1]) ** 2)))}
        means = noisy[0].mean() / noisy[2].mean() - 1.0
        beyond.append(abs(means) > resolution(noise, 40))
    assert 0.01 < np.mean(beyond) < 0.12
