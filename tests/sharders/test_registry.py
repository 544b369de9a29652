import dataclasses
import re

import numpy as np
import pytest
from search.settings import QUICK
from search.small_models import small_models
from search.tasks import random_task

import neuroshard_pipeline as ns
from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import (
    CostModelError,
    DoesNotFitError,
    NeuroShardError,
    PlanError,
    TableFileError,
    TaskError,
)
from neuroshard_pipeline.sharders.registry import SHARDERS as REGISTERED
from neuroshard_pipeline.sharders.registry import shard, solve_all
from sharders.policy_makers import untrained_policies

#: `torchrec_fitted` stands for both sharders with TorchRec's planner; they have tests of their own (`test_torchrec`).
SHARDERS = tuple(name for name in REGISTERED if name != "torchrec")
POLICIES = untrained_policies()


def some_tasks():
    return [
        dataclasses.replace(random_task(np.random.default_rng(seed), 8, 3, tightness), task_id=f"task-{seed}")
        for seed, tightness in enumerate((0.4, 0.9, 1.1))
    ]


@pytest.mark.parametrize("path", [None, ["tables.csv"]])
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (ns.read_tables, TableFileError),
        (ns.read_constraints, TableFileError),
        (lambda path: ns.read_bandwidths(path, 2), TableFileError),
        (ns.load_cost_models, CostModelError),
        (ns.load_policies, NeuroShardError),
    ],
)
def test_what_is_no_path_is_named(function, error, path):
    with pytest.raises(error, match=re.escape(str(path))):
        function(path)


def test_arguments_of_another_type_are_refused_with_what_to_pass():
    with pytest.raises(CostModelError, match="models None must be cost models, as load_cost_models returns them"):
        shard(some_tasks()[0], None)
    with pytest.raises(TaskError, match=r"task \[.* must be made with ShardingTask"):
        shard(list(some_tasks()[0].tables), small_models())
    plan = shard(some_tasks()[0], small_models(), "random")
    with pytest.raises(PlanError, match="plan ShardingTask"):
        ns.ordered_by_links(plan.task, np.ones((3, 3)), small_models())
    with pytest.raises(CostModelError, match="models 'h100'"):
        ns.ordered_by_links(plan, np.ones((plan.task.world_size,) * 2), "h100")


@pytest.mark.parametrize(
    "argument",
    [
        *({"seed": seed} for seed in (-1, 1.5, "x", None, True)),
        *({"sharder": name} for name in (None, 3, ["random"])),
        {"params": {}},
        {"params": "fast"},
        {"policies": "data/06_models"},
    ],
)
def test_every_argument_of_a_wrong_type_is_named_in_one_error(argument):
    ((name, value),) = argument.items()
    with pytest.raises(NeuroShardError, match=re.escape(f"{name} {value!r}")):
        shard(some_tasks()[0], small_models(), **argument)


@pytest.mark.parametrize("name", SHARDERS)
def test_every_sharder_plans_with_a_predicted_cost(name):
    task = some_tasks()[0]
    plan = shard(task, small_models(), name, QUICK, policies=POLICIES)
    assert plan.sharder == name
    assert plan.predicted_cost_ms > 0
    assert len(plan.predicted.rank_ms) == task.world_size
    assert plan.explain().startswith("task-0: 8 tables")


def test_neuroshard_plus_costs_no_more_than_neuroshard_and_that_no_more_than_random():
    task, models = some_tasks()[0], small_models()
    costs = [shard(task, models, name, QUICK).predicted_cost_ms for name in ("neuroshard_plus", "neuroshard", "random")]
    assert costs == sorted(costs)


def test_an_unknown_sharder_is_refused_with_the_known_ones():
    with pytest.raises(
        NeuroShardError, match=r"'neuroshart' is unknown; use one of random, size_greedy.*; did you mean 'neuroshard'\?"
    ):
        shard(some_tasks()[0], small_models(), "neuroshart")
    with pytest.raises(NeuroShardError, match="unknown"):
        solve_all([], ["random", "nobody"], small_models())


@pytest.fixture(scope="module")
def solutions():
    """Plans of all sharders; another task comes before the first of `some_tasks`."""
    return solve_all([some_tasks()[at] for at in (1, 0, 2)], SHARDERS, small_models(), QUICK, seed=7, policies=POLICIES)


def test_solve_all_reports_plans_failures_and_seconds(solutions):
    tasks, found = [some_tasks()[at] for at in (1, 0, 2)], solutions
    assert found.attempts[["task_id", "sharder"]].to_numpy().tolist() == [
        [task.task_id, name] for task in tasks for name in SHARDERS
    ]
    assert (found.attempts["seconds"] > 0).all()
    assert len(found.plans) + len(found.failures) == len(found.attempts)
    assert set(found.failures.query("task_id == 'task-2'")["sharder"]) == set(SHARDERS)  # more bytes than memory
    assert found.failures["error"].str.contains("bytes").all()
    solved = {(plan.task.task_id, plan.sharder) for plan in found.plans}
    assert {("task-0", "neuroshard"), ("task-1", "neuroshard")} <= solved


def test_a_sharder_s_plan_does_not_depend_on_what_else_runs(solutions):
    task, models = some_tasks()[0], small_models()
    together = [plan for plan in solutions.plans if plan.task.task_id == task.task_id]
    mine = {plan.sharder: (plan.shards, plan.ranks) for plan in together}
    alone = [shard(task, models, name, QUICK, seed=7, policies=POLICIES) for name in SHARDERS]
    assert mine == {plan.sharder: (plan.shards, plan.ranks) for plan in alone}


def test_a_task_that_cannot_fit_is_an_error():
    with pytest.raises(DoesNotFitError, match=r"task-2: the tables need .* bytes\) are missing"):
        shard(some_tasks()[2], small_models())


def test_all_ways_to_plan_put_ranks_on_the_hosts_of_the_models_cluster():
    """The shipped models of the H100 are those of a cluster with eight ranks per host."""
    task, models = random_task(np.random.default_rng(0), 8, 16, 0.4), load_cost_models("h100")
    name = "neuroshard"
    plans = [shard(task, models, name, QUICK), *solve_all([task], [name], models, QUICK).plans]
    assert task.local_world_size is None
    assert [plan.task for plan in plans] == [dataclasses.replace(task, local_world_size=8)] * 2
