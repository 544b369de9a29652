"""Variants of a task, such as tables cut into tiers: the cheapest one is chosen, priced and explained like any task."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from search.settings import QUICK, WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from search.tasks import random_tables

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.price import price_plan, priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders import neuroshard, registry
from neuroshard_pipeline.sharders.variants import best_variant
from neuroshard_pipeline.sharders.whole_step import whole_step_placement
from neuroshard_pipeline.tables.task import ShardingTask

SETTINGS = replace(QUICK, memory=WEIGHTS_AND_OPTIMIZER)
TASK = ShardingTask(random_tables(np.random.default_rng(2), 2), 2, 2048, 2**40)


def scaled(task: ShardingTask, factor: float) -> ShardingTask:
    """The task with other pooling factors, which stands for a choice that changes what tables cost."""
    tables = [replace(t, pooling_factor=t.pooling_factor * factor, unique_rows=None, reuse=None) for t in task.tables]
    return replace(task, tables=tables)


def halving(problem: Problem) -> list[ShardingTask]:
    return [scaled(problem.task, factor) for factor in (0.5, 4.0)]


def none(problem: Problem) -> list[ShardingTask]:  # noqa: ARG001
    return []


@cache
def found(task: ShardingTask, variants):
    problem = Problem(task, step_models(), SETTINGS.memory)
    rng = np.random.default_rng(0)
    return problem, best_variant(problem, SETTINGS.search, SETTINGS.local_search, rng, variants)


def test_without_variants_the_placement_is_that_of_the_search():
    problem, placement = found(TASK, none)
    rng = np.random.default_rng(0)
    assert placement == whole_step_placement(problem, SETTINGS.search, SETTINGS.local_search, rng)


def test_the_cheapest_variant_is_chosen_and_priced_as_a_task_of_its_own():
    problem, best = found(TASK, halving)
    assert best.task == scaled(TASK, 0.5)
    plan = price_plan(problem, best, "plus")
    assert plan.task is best.task
    assert plan == priced(plan, problem.models)
    assert plan.predicted_cost_ms < price_plan(problem, found(TASK, none)[1], "plus").predicted_cost_ms


def test_a_task_that_does_not_fit_may_have_a_variant_that_does():
    tight = replace(TASK, memory_bytes=1000)
    with pytest.raises(DoesNotFitError):
        found(tight, halving)
    _, best = found(tight, lambda problem: [replace(problem.task, memory_bytes=2**40)])
    assert best.task.memory_bytes == 2**40


def test_plans_of_the_registry_belong_to_the_variant(monkeypatch):
    monkeypatch.setattr(neuroshard, "best_variant", partial(best_variant, variants=halving))
    expected, models = scaled(TASK, 0.5), step_models()
    plan = registry.shard(TASK, models, "neuroshard_plus", SETTINGS)
    assert plan.task == expected
    assert {shard.table for shard in plan.shards} == set(expected.tables)
    assert plan.rejected
    assert [p.task for p in registry.solve_all([TASK], ["neuroshard_plus"], models, SETTINGS).plans] == [expected]
    ordered = registry.ordered_by_links(plan, np.ones((2, 2)), models)
    assert ordered.task == expected
    assert ordered.predicted_cost_ms == pytest.approx(plan.predicted_cost_ms)
