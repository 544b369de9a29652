"""No plan on several hosts is cheaper in the lab than the bound of `lab_branching`."""

import itertools

import numpy as np
import pytest
from lab.plans_in_python import DEVICE, encoded, evaluate, job_of, machine_of
from lab.test_lab_plans import all_plans, drawn_problem
from lab_branching import Branching
from lab_terms import terms_of
from search.test_step_bounds import ways

from neuroshard_pipeline.search.plan import Placement

ROUNDING = 1 + 1e-6


def branching_of(problem, terms):
    job = job_of(problem.task)
    return Branching(terms, machine_of(job), job.network)


def cost_us(problem, placement, terms):
    return 1e3 * evaluate(*encoded(placement, problem.task), terms, machine_of(job_of(problem.task)))[0]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [(2, 2, 1), (1, 4, 2), (2, 4, 2)])
def test_no_plan_of_a_tiny_task_is_cheaper_than_the_bound(seed, shape):
    problem = drawn_problem(seed, *shape)
    terms = terms_of(problem, DEVICE)
    least_us = min(cost_us(problem, plan, terms) for plan in all_plans(problem))
    found = branching_of(problem, terms).least(seconds=60.0)
    assert 0.7 * least_us < found.least_us <= least_us * ROUNDING


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_is_cheaper_than_the_bound_of_plans_with_its_types(seed):
    problem, rng = drawn_problem(seed, 4, 12, 4), np.random.default_rng(seed)
    terms = terms_of(problem, DEVICE)
    options = [ways(table, problem) for table in problem.task.tables]
    chosen = [of_table[rng.integers(len(of_table))] for of_table in options]
    placement = Placement(*zip(*itertools.chain(*chosen), strict=True))
    kinds, _ = encoded(placement, problem.task)
    usable = np.zeros_like(terms.usable)
    usable[np.arange(len(kinds)), kinds] = True
    found = branching_of(problem, terms._replace(usable=usable)).least(seconds=0.5)
    assert found.least_us <= cost_us(problem, placement, terms) * ROUNDING
