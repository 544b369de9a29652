import numpy as np

from neuroshard_pipeline.search import greedy_runs
from neuroshard_pipeline.search.columns import beam_search
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER
from neuroshard_pipeline.search.params import PAPER_SEARCH
from search.small_models import small_models
from search.tasks import random_task


def test_what_is_compiled_ahead_is_all_that_a_search_needs():
    greedy_runs.compile_ahead()
    before = len(greedy_runs._place_next.signatures), len(greedy_runs._price_last.signatures)
    task = random_task(np.random.default_rng(0), 12, 4, 0.6)
    beam_search(ShardKinds(task, small_models(), WEIGHTS_AND_OPTIMIZER), PAPER_SEARCH)
    assert (len(greedy_runs._place_next.signatures), len(greedy_runs._price_last.signatures)) == before


def test_states_part_where_their_shards_begin_to_differ():
    sequences = np.array([[5, 1, 2, 9], [5, 1, 3, 9], [4, 1, 2, 9], [5, 1, 2, 8]])
    first, parts = greedy_runs._shared_beginnings(sequences)
    known = {first}
    for step, parent, child in parts.tolist():
        assert parent in known
        assert sequences[parent, :step].tolist() == sequences[child, :step].tolist()
        assert sequences[parent, step] != sequences[child, step]
        known.add(child)
    assert known == {0, 1, 2, 3}
    assert sorted(step for step, *_ in parts.tolist()) == [0, 2, 3]
