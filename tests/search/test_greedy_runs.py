import numpy as np

from neuroshard_pipeline.search import greedy_runs
from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.problem import Problem
from search.settings import PAPER_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task


def test_a_search_needs_no_compilation_after_compile_ahead():
    greedy_runs.compile_ahead()
    before = len(greedy_runs._place_next.signatures), len(greedy_runs._price_last.signatures)
    task = random_task(np.random.default_rng(0), 12, 4, 0.6)
    beam_search(Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER), PAPER_SEARCH)
    assert (len(greedy_runs._place_next.signatures), len(greedy_runs._price_last.signatures)) == before


def test_states_branch_where_their_shards_begin_to_differ():
    sequences = np.array([[5, 1, 2, 9], [5, 1, 3, 9], [4, 1, 2, 9], [5, 1, 2, 8]])
    first, branches = greedy_runs._branches(sequences)
    known = {first}
    for step, parent, child in branches.tolist():
        assert parent in known
        assert sequences[parent, :step].tolist() == sequences[child, :step].tolist()
        assert sequences[parent, step] != sequences[child, step]
        known.add(child)
    assert known == {0, 1, 2, 3}
    assert sorted(step for step, *_ in branches.tolist()) == [0, 2, 3]
