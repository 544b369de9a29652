import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.tasks import random_task

from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import make_sharder
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

HEURISTICS = {
    "size_greedy": lambda table: table.num_embeddings * table.embedding_dim * 4,
    "dim_greedy": lambda table: table.embedding_dim,
    "lookup_greedy": lambda table: table.embedding_dim * table.pooling_factor,
    "size_lookup_greedy": lambda table: table.embedding_dim * table.pooling_factor * np.log10(table.num_embeddings),
}


def plan_of(name, task):
    placement = make_sharder(name).shard(Problem(task, None, WEIGHTS_AND_OPTIMIZER), np.random.default_rng(0))
    return Plan(task, placement.shards, placement.ranks, name)


@pytest.mark.parametrize("name", HEURISTICS)
def test_heaviest_first_on_the_lightest_rank(name):
    task = random_task(np.random.default_rng(4), 9, 3, 0.2)
    plan, weight = plan_of(name, task), HEURISTICS[name]
    rank_of = {shard.table.name: rank for shard, rank in zip(plan.shards, plan.ranks, strict=True)}
    loads, used = [0.0] * 3, [0] * 3
    order = sorted(
        task.tables,
        key=lambda t: (weight(t), WEIGHTS_AND_OPTIMIZER.table_bytes(t, t.embedding_dim, task)),
        reverse=True,
    )
    for table in order:
        lightest = min(range(3), key=lambda rank: (loads[rank], used[rank]))
        assert rank_of[table.name] == lightest
        loads[lightest] += weight(table)
        used[lightest] += WEIGHTS_AND_OPTIMIZER.table_bytes(table, table.embedding_dim, task)


@pytest.mark.parametrize("name", [*HEURISTICS, "random"])
@given(st.integers(0, 2**32 - 1), st.integers(1, 15), st.integers(1, 5), st.floats(0.2, 1.2), st.booleans())
def test_plans_fit_or_the_error_says_what_is_missing(name, seed, num_tables, world_size, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness, uneven=uneven)
    try:
        plan = plan_of(name, task)  # `Plan` refuses too little memory
    except DoesNotFitError as error:
        assert_says_what_is_missing(str(error), task)
    else:
        assert len(plan.shards) == num_tables


def assert_says_what_is_missing(refusal: str, task: ShardingTask) -> None:
    """The error is about the narrowest shard of a table, all tables, all draws of `random`, or one whole table."""
    sizes = {t.name: WEIGHTS_AND_OPTIMIZER.table_bytes(t, t.embedding_dim, task) for t in task.tables}
    narrowest = {t.name: WEIGHTS_AND_OPTIMIZER.table_bytes(t, 4, task) for t in task.tables}
    limits = WEIGHTS_AND_OPTIMIZER.limits(task)
    total, room, most, largest = sum(sizes.values()), sum(limits), max(limits), max(sizes, key=lambda name: sizes[name])
    ranks = len(limits)
    assert total + (ranks - 1) * sizes[largest] > room  # otherwise some rank has room, wherever the other tables are
    if found := re.search(r"table '(.*)' does not fit.* 4 columns .*needs (.*), (.*) more than any", refusal):
        assert found[2] == memory_text(narrowest[found[1]])
        assert found[3] == memory_text(narrowest[found[1]] - most)
    elif total > room:
        assert f"need {memory_text(total)} but the {ranks} ranks have {memory_text(room)}: " in refusal
        assert f": {memory_text(total - room)} are missing" in refusal
    elif "random" in refusal:
        assert (
            f"{largest!r}, needs {memory_text(sizes[largest])}, and the rank with most memory has {memory_text(most)};"
            in refusal
        )
    else:
        found = re.search(r"table '(.*)': it needs (.*) and no .* more than (.*) left: (.*) are missing", refusal)
        needed, left, missing = (int(re.search(r"(\d+) bytes", text)[1]) for text in found.groups()[1:])
        assert needed == sizes[found[1]]
        assert missing == needed - left > 0
        assert left * ranks >= room - (total - needed)


def test_the_error_names_table_and_missing_bytes():
    tables = [Table("small", 100, 8, 1.0), Table("large", 1000, 16, 1.0)]
    task = ShardingTask(tables, 2, 16, 60_000)
    with pytest.raises(DoesNotFitError, match=r"dim_greedy found no rank for table 'large': .* 4000 bytes are missing"):
        plan_of("dim_greedy", task)


def test_random_draws_depend_on_the_generator_alone():
    task = random_task(np.random.default_rng(0), 20, 4, 0.2)
    sharder, problem = make_sharder("random"), Problem(task, None, WEIGHTS_AND_OPTIMIZER)
    first, again, other = (sharder.shard(problem, np.random.default_rng(seed)).ranks for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_random_uses_every_rank_about_equally():
    tables = [Table(f"t{index}", 10, 4, 1.0) for index in range(4000)]
    ranks = plan_of("random", ShardingTask(tables, 4, 16, 2**30)).ranks
    assert np.bincount(ranks, minlength=4) == pytest.approx([1000] * 4, abs=150)
