import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.halving import make_room
from neuroshard_pipeline.search.packing import check_room, pack_by_size
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models


def a_task(rows, dim, world_size, memory_bytes):
    tables = [Table(f"t{index}", count, dim, 1.0) for index, count in enumerate(rows)]
    return ShardingTask(tables, world_size, 16, memory_bytes, task_id="tight")


@given(st.lists(st.integers(1, 50), max_size=20), st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_packing_keeps_every_limit_and_leaves_over_only_what_has_no_room(sizes, limits):
    ranks, left_over = pack_by_size(sizes, limits)
    used = [sum(size for size, rank in zip(sizes, ranks, strict=True) if rank == r) for r in range(len(limits))]
    free = [limit - u for limit, u in zip(limits, used, strict=True)]
    assert min(free) >= 0
    assert [index for index, rank in enumerate(ranks) if rank == -1] == sorted(left_over)
    assert all(sizes[index] > max(free) for index in left_over)


def test_missing_bytes_and_ranks_are_named():
    task = a_task([1000, 1000, 1000], 8, 2, 40_000)  # 96,000 bytes on 80,000
    with pytest.raises(
        DoesNotFitError, match=r"tight: .* 16000 bytes are missing, 8000 bytes per rank; .* 3 ranks of 40000"
    ):
        check_room(task, WEIGHTS_AND_OPTIMIZER)


def test_a_table_too_tall_for_any_rank_is_named():
    task = a_task([10, 1000], 4, 2, 15_000)
    with pytest.raises(DoesNotFitError, match=r"'t1' does not fit: .* needs 16000 bytes, 1000 bytes more"):
        check_room(task, WEIGHTS_AND_OPTIMIZER)


def test_room_is_made_by_splitting():
    task = a_task([1000] * 3, 16, 2, 96_000)  # 64,000 bytes each: every rank has room for one and a half
    problem = Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER)
    state = make_room(problem)
    assert len(state) == 4
    assert np.sort(problem.width[state]).tolist() == [8, 8, 16, 16]


@given(st.integers(2, 40), st.integers(1, 12))
def test_halves_have_whole_steps_of_4_columns(steps, least):
    constraints = Constraints([TableConstraint("t0", min_width=4 * least)])
    task = dataclasses.replace(a_task([10], 4 * steps, 2, 2**30), constraints=constraints)
    problem = Problem(task, None, WEIGHTS_AND_OPTIMIZER)
    (halves,) = problem.halves(problem.whole_tables.tolist())
    wide, narrow = problem.width[halves].tolist()
    assert wide + narrow == 4 * steps
    assert 0 <= wide - narrow <= 4
    assert problem.can_halve[0] == (narrow >= 4 * min(least, steps))


def test_room_is_made_by_splitting_tables_whose_half_is_no_multiple_of_4():
    problem = Problem(a_task([1000] * 2, 100, 4, 52 * 4000), small_models(), WEIGHTS_AND_OPTIMIZER)
    state = make_room(problem)
    assert np.sort(problem.width[state]).tolist() == [48, 48, 52, 52]


def test_sequence_tables_are_cut_no_further_than_needed():
    """The shard left over at last is one of `wide`; `low` may be cut in its place, into fewer shards."""
    shapes = {"tall": (1078, 64), "low": (80, 48), "wide": (130, 100), "tiny": (18, 48), "second": (871, 36)}
    tables = [Table(name, rows, width, 1.0, pooling="none") for name, (rows, width) in shapes.items()]
    problem = Problem(ShardingTask(tables, 30, 16, 18_500), small_models(), WEIGHTS_AND_OPTIMIZER)
    state = make_room(problem)
    names = [problem.units[unit].name for unit in problem.unit[state]]
    cut = Counter(zip(names, problem.width[state].tolist(), strict=True))
    assert cut == {("tall", 4): 16, ("second", 4): 9, ("wide", 20): 5, ("low", 24): 2, ("tiny", 48): 1}


def test_fragments_that_fit_nowhere_are_reported():
    task = a_task([1000] * 3, 4, 2, 30_000)  # 16,000 bytes each: one on each rank, one left over
    problem = Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER)
    check_room(task, WEIGHTS_AND_OPTIMIZER)
    with pytest.raises(
        DoesNotFitError, match=r"1 of the shards, 16000 bytes in all, .* table 't2' .* of about 40001 bytes"
    ):
        make_room(problem)


def pinned_task(constraints):
    return dataclasses.replace(a_task([1000] * 3, 8, 3, 40_000), constraints=constraints)  # 32,000 bytes each


def test_tables_pinned_to_too_few_ranks_are_named_with_the_missing_bytes():
    pins = [TableConstraint("t0", ranks=[1]), TableConstraint("t2", ranks=[1])]
    with pytest.raises(
        DoesNotFitError, match=r"the 2 tables that may lie on ranks \[1\] only, .* 24000 bytes are miss"
    ):
        check_room(pinned_task(Constraints(pins)), WEIGHTS_AND_OPTIMIZER)
    check_room(pinned_task(Constraints(pins[:1])), WEIGHTS_AND_OPTIMIZER)


def test_tables_kept_together_count_as_several_tables():
    pins = [TableConstraint(name, ranks=[1]) for name in ("t0", "t1", "t2")]
    task = dataclasses.replace(pinned_task(Constraints(pins, together=[["t0", "t2"]])), memory_bytes=70_000)
    with pytest.raises(DoesNotFitError, match=r"the 3 tables that may lie on ranks \[1\] only, .* 26000 bytes are m"):
        check_room(task, WEIGHTS_AND_OPTIMIZER)


def test_tables_kept_together_beyond_any_rank_are_named():
    together = Constraints(together=[["t0", "t2"]])
    with pytest.raises(
        DoesNotFitError, match=r"'t0 \+ t2' does not fit: .* 16 columns .*needs 64000 bytes, 24000 bytes more"
    ):
        check_room(pinned_task(together), WEIGHTS_AND_OPTIMIZER)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 2**16))
def test_packing_puts_nothing_where_it_is_not_allowed(sizes, seed):
    allowed = np.random.default_rng(seed).random((len(sizes), 3)) < 0.5
    limits = [60, 100, 140]
    ranks, left_over = pack_by_size(sizes, limits, allowed)
    assert all(allowed[index, rank] for index, rank in enumerate(ranks) if rank != -1)
    used = [sum(size for size, rank in zip(sizes, ranks, strict=True) if rank == r) for r in range(3)]
    assert all(u <= limit for u, limit in zip(used, limits, strict=True))
    assert sorted(left_over) == [index for index, rank in enumerate(ranks) if rank == -1]
