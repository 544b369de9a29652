"""Both halves of a step: the price of waiting twice, and the search that balances each half over the ranks."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.search.halves import balanced_halves
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import halves_ms, placement_cost_ms, predicted_cost
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

MODELS = load_cost_models("h100")
RANKS = 4
#: With rows that are looked up once, the second half of a step, which has the backward lookups, takes three fifths of
#: the time; with few rows that are looked up often, less than half.
BACKWARD = [Table(f"rare{number}", 10**7, 512, 40.0) for number in range(6)]
FORWARD = [Table(f"often{number}", 200, 512, 56.0) for number in range(6)]


def problem_of(tables, **fields) -> Problem:
    task = ShardingTask(tables, RANKS, RANKS * 8192, 2**36, **fields)
    return Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER)


def halves_of(problem: Problem, placement: Placement) -> np.ndarray:
    parts = step_parts(problem.task, placement.shards, placement.ranks, problem.models)
    return halves_ms(parts, problem.models, problem.task.batch_size)


def apart() -> tuple[Problem, Placement]:
    """Tables with costly gradients on two ranks, the others on two other ranks."""
    problem = problem_of([*BACKWARD, *FORWARD])
    return problem, Placement(tuple(map(whole, problem.task.tables)), (0, 1) * 3 + (2, 3) * 3)


def test_ranks_that_exchange_ids_wait_for_the_slowest_rank_of_each_half():
    problem, placement = apart()
    halves = halves_of(problem, placement)
    parts = step_parts(problem.task, placement.shards, placement.ranks, MODELS)
    cost = predicted_cost(parts, MODELS, problem.task.batch_size)
    slowest = halves[:, 0].max() + halves[:, 1].max()
    longer = np.array(cost.input_dist_ms) - parts.input_dist_ms
    assert longer == pytest.approx([slowest - halves.sum(axis=1).max()] * RANKS)
    assert longer[0] > 0.05 * slowest
    assert cost.embedding_cost_ms >= slowest
    assert halves.sum(axis=1) == pytest.approx(parts.own_ms + cost.backward_comm_ms)


def test_ranks_wait_once_if_the_exchange_of_ids_is_hidden_or_there_is_none():
    problem, placement = apart()
    for task, shards, ranks in (
        (replace(problem.task, pipelines_input_dist=True), placement.shards, placement.ranks),
        (problem.task, [whole(BACKWARD[0], "data_parallel")] * RANKS, range(RANKS)),
    ):
        parts = step_parts(task, shards, ranks, MODELS)
        assert predicted_cost(parts, MODELS, task.batch_size).input_dist_ms == tuple(parts.input_dist_ms)


def test_exchanges_balance_both_halves():
    problem, placement = apart()
    found = balanced_halves(problem, placement)
    before, after = halves_of(problem, placement), halves_of(problem, found)
    assert (after.max(axis=0) < 0.96 * before.max(axis=0)).all()
    assert placement_cost_ms(problem, found) < 0.95 * placement_cost_ms(problem, placement)


def test_a_balanced_placement_and_one_whose_exchange_of_ids_is_hidden_stay():
    problem, placement = apart()
    found = balanced_halves(problem, placement)
    assert balanced_halves(problem, found) == found
    hidden = problem_of(problem.task.tables, pipelines_input_dist=True)
    assert balanced_halves(hidden, placement) is placement


def test_exchanges_stay_within_host_memory():
    """Every rank has one table in host memory, which has no room for another one."""
    _, placement = apart()
    hosted = [Table(f"hosted{rank}", 100_000, 16, 0.1, compute_kernel="fused_uvm") for rank in range(RANKS)]
    problem = problem_of([*BACKWARD, *FORWARD, *hosted], host_memory_bytes=hosted[0].weight_bytes)
    placement = Placement(tuple(map(whole, problem.task.tables)), (*placement.ranks, *range(RANKS)))
    found = balanced_halves(problem, placement)
    assert placement_cost_ms(problem, found) < 0.95 * placement_cost_ms(problem, placement)
    Plan(problem.task, found.shards, found.ranks, "test", memory=WEIGHTS_AND_OPTIMIZER)


@pytest.mark.parametrize("seed", range(6))
def test_plans_are_valid_and_cheaper_with_and_without_constraints(seed):
    rng = np.random.default_rng(seed)
    tables = [
        replace(table, name=f"t{n}", pooling=str(rng.choice(("sum", "mean"))), module=str(rng.choice(("a", "b"))))
        for n, table in enumerate([*BACKWARD, *FORWARD])
    ]
    constraints = {"constraints": Constraints(together=[["t1", "t2"]])} if seed % 2 else {}
    problem = problem_of(tables, **constraints)
    shards = [part for table in tables for part in halved(table, bool(rng.integers(2)) and not constraints)]
    ranks = {table.name: rng.permutation(RANKS) for table in tables}
    ranks["t2"] = ranks["t1"]
    placement = Placement(tuple(shards), tuple(int(ranks[s.table.name][int(s.column_offset > 0)]) for s in shards))
    found = balanced_halves(problem, placement)
    Plan(problem.task, found.shards, found.ranks, "test", memory=WEIGHTS_AND_OPTIMIZER)
    assert placement_cost_ms(problem, found) < placement_cost_ms(problem, placement)


def halved(table: Table, is_cut: bool) -> list[Shard]:
    half = table.embedding_dim // 2
    return [Shard(table, 0, half), Shard(table, half, half)] if is_cut else [whole(table)]
