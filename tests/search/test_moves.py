import numpy as np
import pytest

from neuroshard_pipeline.search.moves import apply_moves, feasible, layout_of, loads_after, propose
from neuroshard_pipeline.search.problem import Problem
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task


def a_layout(seed, num_tables=6, world_size=3):
    """Tables of which some are split, so that shifts, and merges between ranks and within a rank, are possible."""
    rng = np.random.default_rng(seed)
    task = random_task(rng, num_tables, world_size, 0.5)
    problem = Problem(task, small_models(seed), WEIGHTS_AND_OPTIMIZER)
    pairs = []
    for index, table in enumerate(task.tables):
        width = table.embedding_dim
        pairs += [(index, width)] if width == 4 else [(index, 4), (index, width - 4)]
    state = problem.numbers(pairs)
    return layout_of(state, rng.integers(world_size, size=len(state)), problem), problem, rng


@pytest.mark.parametrize("seed", range(6))
def test_loads_after_a_move_equal_those_of_the_new_layout(seed):
    layout, problem, rng = a_layout(seed)
    everyone = np.arange(len(layout.dims))
    moves = propose(layout, problem, everyone, everyone, 10_000, rng)
    loads, allowed = loads_after(layout, moves, problem), feasible(layout, moves, problem)
    assert len(moves) > 100
    assert 0 < allowed.sum() < len(moves)
    for index in rng.choice(len(moves), 60, replace=False).tolist():
        after = apply_moves(layout, moves.take(np.array([index])), problem)
        source, target = moves.source[index], moves.target[index]
        np.testing.assert_allclose(loads.compute_ms[index], after.compute_ms[[source, target]], rtol=1e-9)
        assert loads.dims[index].tolist() == after.dims[[source, target]].tolist()
        assert allowed[index] == (after.free[[source, target]].min() >= 0)
        columns = np.bincount(problem.unit[after.kinds], weights=problem.width[after.kinds])
        assert columns.tolist() == [table.embedding_dim for table in problem.task.tables]


def test_every_move_starts_from_a_source():
    layout, problem, rng = a_layout(0)
    moves = propose(layout, problem, np.array([1]), np.array([0, 2]), 10_000, rng)
    assert set(moves.source.tolist()) == {1}
