"""No plan of given types on several hosts is cheaper in the lab than the bound of `lab_branching`."""

import itertools

import numpy as np
import pytest
from lab.plans_in_python import DEVICE, encoded, evaluate, job_of, machine_of
from lab.test_lab_plans import ROUNDING, branching_of, drawn_problem
from lab_terms import terms_of
from search.test_step_bounds import ways

from neuroshard_pipeline.search.plan import Placement


def cost_us(problem, placement, terms):
    return 1e3 * evaluate(*encoded(placement, problem.task), terms, machine_of(job_of(problem.task)))[0]


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_cheaper_than_the_bound_of_plans_with_its_types(seed):
    problem, rng = drawn_problem(seed, 4, 12, 4), np.random.default_rng(seed)
    terms = terms_of(problem, DEVICE)
    options = [ways(table, problem) for table in problem.task.tables]
    chosen = [of_table[rng.integers(len(of_table))] for of_table in options]
    placement = Placement(*zip(*itertools.chain(*chosen), strict=True))
    kinds, _ = encoded(placement, problem.task)
    usable = np.zeros_like(terms.usable)
    usable[np.arange(len(kinds)), kinds] = True
    found = branching_of(problem, terms._replace(usable=usable)).least(seconds=0.2)
    assert found.least_us <= cost_us(problem, placement, terms) * ROUNDING
