"""Solving tasks in worker processes gives the plans of `solve_all`, and a lost worker costs its own task only."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from search.small_models import small_models
from search.tasks import random_tables

from neuroshard_pipeline.evaluation.solving_in_workers import solve_in_workers
from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.workers import Outcome, WorkerParams, map_items

SHARDERS = ("random", "size_greedy", "neuroshard")
TWO_WORKERS = WorkerParams(engine="local", address=None, workers=2, timeout_s=60)


@pytest.fixture
def tasks():
    tables = random_tables(np.random.default_rng(0), 6, dims=(16, 32))
    task = ShardingTask(tables, 2, 64, sum(table.weight_bytes for table in tables), task_id="roomy")
    return [task, dataclasses.replace(task, memory_bytes=8, task_id="hopeless"), dataclasses.replace(task, task_id="x")]


SOLVE = partial(solve_all, sharder_names=SHARDERS, models=small_models(), settings=SharderSettings(), seed=3)


def test_plans_and_attempts_are_those_of_one_process_in_the_order_of_the_tasks(tasks):
    expected = SOLVE(tasks)
    run = partial(map_items, params=TWO_WORKERS, preload=PRELOAD)
    found = solve_in_workers(SOLVE, tasks, SHARDERS, run)
    assert [plan.to_frame().to_dict() for plan in found.plans] == [plan.to_frame().to_dict() for plan in expected.plans]
    columns = ["task_id", "sharder", "error"]
    assert found.attempts[columns].fillna("").values.tolist() == expected.attempts[columns].fillna("").values.tolist()


def test_all_attempts_on_a_task_fail_if_its_worker_dies_and_no_others(tasks):
    def run(function, items):
        yield Outcome(2, function(items[2]), None)
        yield Outcome(0, None, "worker 0 died")
        yield Outcome(1, function(items[1]), None)

    found = solve_in_workers(SOLVE, tasks, SHARDERS, run)
    of_task = dict(list(found.attempts.groupby("task_id", sort=False)))
    assert [*of_task] == ["roomy", "hopeless", "x"]
    assert of_task["roomy"]["error"].str.contains("roomy.*worker 0 died").all()
    assert of_task["x"]["error"].isna().all()
    assert {plan.task.task_id for plan in found.plans} == {"x"}
    assert [*of_task["roomy"]["sharder"]] == [*SHARDERS]
