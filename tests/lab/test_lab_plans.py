"""The module lab_plans of the benchmarks computes the cost of a plan as `lab.step`.

No cost is below the bounds of `lab_bounds` and `lab_branching`.

These tests run the functions of lab_plans as Python, without compiling them.
"""

import itertools
from functools import cache

import numpy as np
import pytest
from lab.plans_in_python import DEVICE, NETWORK, anneal, decoded, encoded, evaluate, job_of, machine_of
from lab_bounds import LabBound
from lab_branching import Branching
from lab_terms import terms_of
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from search.test_step_bounds import drawn_tables, ways

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.lab.step import step_cost_ms
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.task import ShardingTask

ROUNDING = 1 + 1e-6
SHAPES = [(1, 2, 2), (3, 2, 2), (2, 2, 1), (1, 4, 2), (2, 4, 2)]


def drawn_problem(seed, count, world_size, local):
    rng = np.random.default_rng([seed, count, world_size, local])
    tables, batch_size = drawn_tables(rng, count), int(rng.choice((256, 8192, 65536)))
    task = ShardingTask(tables, world_size, batch_size, 2**40, optimizer="rowwise_adagrad", local_world_size=local)
    return Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)


def all_plans(problem):
    for chosen in itertools.product(*(ways(table, problem) for table in problem.task.tables)):
        yield Placement(*zip(*itertools.chain(*chosen), strict=True))


def lab_ms(problem, placement):
    return step_cost_ms(problem.task, placement.shards, placement.ranks, DEVICE, NETWORK).step_ms


@cache
def priced_plans(seed, *shape):
    problem = drawn_problem(seed, *shape)
    terms, machine = terms_of(problem, DEVICE), machine_of(job_of(problem.task))
    plans = list(all_plans(problem))
    return problem, terms, plans, [evaluate(*encoded(plan, problem.task), terms, machine)[0] for plan in plans]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cost_of_lab_plans_is_the_lab_s_and_no_plan_is_cheaper_than_the_bound(seed, shape):
    problem, terms, plans, costs = priced_plans(seed, *shape)
    some = np.random.default_rng(seed).choice(len(plans), min(len(plans), 5), replace=False)
    for number in {*some.tolist(), int(np.argmin(costs))}:
        assert costs[number] == pytest.approx(lab_ms(problem, plans[number]), rel=1e-9)
    bound = LabBound(terms, job_of(problem.task)).step_ms(min(costs))
    assert 0.5 * min(costs) < bound <= min(costs) * (1 + 1e-9)


def branching_of(problem, terms):
    job = job_of(problem.task)
    return Branching(terms, machine_of(job), job.network)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES[2:])
def test_no_plan_of_a_tiny_task_on_two_hosts_is_cheaper_than_the_bound_of_branching(seed, shape):
    problem, terms, _, costs = priced_plans(seed, *shape)
    found = branching_of(problem, terms).least(seconds=60.0)
    assert 0.7e3 * min(costs) < found.least_us <= 1e3 * min(costs) * ROUNDING


@pytest.mark.parametrize("seed", range(3))
def test_the_cost_of_lab_plans_is_the_lab_s_on_three_hosts(seed):
    problem, rng = drawn_problem(seed, 4, 12, 4), np.random.default_rng(seed)
    options = [ways(table, problem) for table in problem.task.tables]
    chosen = [of_table[rng.integers(len(of_table))] for of_table in options]
    placement = Placement(*zip(*itertools.chain(*chosen), strict=True))
    machine = machine_of(job_of(problem.task))
    cost = evaluate(*encoded(placement, problem.task), terms_of(problem, DEVICE), machine)[0]
    assert cost == pytest.approx(lab_ms(problem, placement), rel=1e-9)


def test_a_plan_is_the_same_after_encoding():
    problem = drawn_problem(0, 2, 4, 2)
    for plan in list(all_plans(problem))[::7]:
        again = decoded(*encoded(plan, problem.task), problem.task)
        assert set(zip(again.shards, again.ranks, strict=True)) == set(zip(plan.shards, plan.ranks, strict=True))


def test_annealing_finds_the_cheapest_plan_of_a_tiny_task():
    problem, terms, plans, costs = priced_plans(1, 2, 2, 1)
    task = problem.task
    kinds, blocks = encoded(plans[-1], task)
    room = np.concatenate([blocks, np.zeros((40, 3), dtype=np.int64)])
    machine = machine_of(job_of(task))
    rng = np.random.default_rng(0)
    cost, *found = anneal(rng, 1500, 0.03, 0.0002, kinds, room, len(blocks), terms.usable, terms, machine)
    placement = decoded(*found, task)
    Plan(task, placement.shards, placement.ranks, "annealing", memory=WEIGHTS_AND_OPTIMIZER)
    assert cost == pytest.approx(lab_ms(problem, placement), rel=1e-9)
    assert cost <= min(costs) * (1 + 1e-9)


def test_tables_with_mean_pooling_have_no_terms():
    task = ShardingTask(drawn_tables(np.random.default_rng(0), 2, pooling="mean"), 2, 256, 2**40)
    with pytest.raises(NeuroShardError, match="one module of tables pooled by sum"):
        terms_of(Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER), DEVICE)
