"""Random tasks: plans cover every column once and keep all limits; neuroshard finds a plan whenever there is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from search.constrained_tasks import constrained_tasks, fits_somehow
from search.settings import LOCAL_SEARCH
from search.small_models import small_models

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import LEARNED, make_sharder
from sharders.policy_makers import untrained_policies

QUICK = {
    "search": SearchParams(
        num_candidates=3, beam_width=2, max_steps=2, num_caps=3, min_cap_ratio=1.0, max_cap_ratio=1.5
    ),
    "local_search": LOCAL_SEARCH.model_copy(update={"max_rounds": 6}),
}
MODELS = small_models()
POLICIES = untrained_policies()


def attempt(name, task, memory):
    """The placement, or the text of the refusal."""
    sharder = make_sharder(name, SharderSettings(memory=memory, **QUICK), POLICIES)
    try:
        return sharder.shard(Problem(task, MODELS, memory), np.random.default_rng(0)), ""
    except DoesNotFitError as error:
        return None, str(error)


def check_plan(plan, task, memory):
    """Counts columns, bytes, ranks, widths and shards by itself, without the checks of `Plan`."""
    used = np.zeros(task.world_size, dtype=int)
    for table in task.tables:
        placed = [(s, rank) for s, rank in zip(plan.shards, plan.ranks, strict=True) if s.table is table]
        covered = sorted(c for s, _ in placed for c in range(s.column_offset, s.column_offset + s.embedding_dim))
        assert covered == list(range(table.embedding_dim))
        constraint = task.constraints.of(table.name)
        assert {rank for _, rank in placed} <= set(constraint.allowed_ranks(task.world_size))
        assert len(placed) == 1 or min(s.embedding_dim for s, _ in placed) >= constraint.min_width
        assert len(placed) <= (constraint.max_shards or 100)
        for shard, rank in placed:
            used[rank] += memory.table_bytes(table, shard.embedding_dim, task)
    assert (used <= memory.limits(task)).all()
    rank_of = dict(zip([s.table.name for s in plan.shards], plan.ranks, strict=True))
    for group in task.constraints.together:
        assert len({rank_of[name] for name in group}) == 1
        assert sum(s.table.name in group for s in plan.shards) == len(group)


def check_attempt(name, task, memory, *, complete):
    plan, refusal = attempt(name, task, memory)
    if plan is not None:
        check_plan(plan, task, memory)
        return
    assert "bytes" in refusal
    assert task.task_id in refusal
    if complete or name not in refusal:  # a refusal that names the sharder says only that it found no plan
        assert not fits_somehow(task, memory), refusal


@settings(max_examples=40)
@given(constrained_tasks())
def test_neuroshard_solves_every_task_that_has_a_solution(case):
    check_attempt("neuroshard", *case, complete=True)


@settings(max_examples=30)
@given(constrained_tasks())
def test_neuroshard_plus_solves_every_task_that_has_a_solution(case):
    check_attempt("neuroshard_plus", *case, complete=True)


@pytest.mark.parametrize(
    "name", ["random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy", "embark", "milp", *LEARNED]
)
@given(constrained_tasks())
def test_rivals_keep_limits_and_constraints(name, case):
    check_attempt(name, *case, complete=False)
