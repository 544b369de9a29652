import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.constraints import (
    UNCONSTRAINED,
    Constraints,
    TableConstraint,
    possible_types,
    type_violation,
)
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Table
from neuroshard_pipeline.tables.task import ShardingTask

TABLES = [Table(name, 100, 16, 1.0) for name in "abcd"]


def a_task(*single, **rest):
    return ShardingTask(TABLES, 3, 32, 2**20, task_id="mine", constraints=Constraints(single, **rest))


def test_a_task_has_no_constraints_by_default():
    task = ShardingTask(TABLES, 3, 32, 2**20)
    assert task.constraints == UNCONSTRAINED
    assert not task.constraints
    assert a_task(min_width=8).constraints


def test_the_stricter_of_a_tables_and_the_general_constraint_applies():
    constraints = a_task(
        TableConstraint("a", min_width=4, max_shards=5), TableConstraint("b", split=False), min_width=8, max_shards=3
    ).constraints
    assert (constraints.of("a").min_width, constraints.of("a").max_shards) == (8, 3)
    assert constraints.of("b").max_shards == 1
    assert constraints.of("c").max_shards == 3


def test_pins_and_forbidden_ranks_combine():
    constraint = TableConstraint("a", ranks=[2, 0, 1], forbidden_ranks=[0])
    assert constraint.allowed_ranks(4) == (1, 2)
    assert TableConstraint("a", forbidden_ranks=[0]).allowed_ranks(3) == (1, 2)


@pytest.mark.parametrize(
    ("single", "rest", "message"),
    [
        ([TableConstraint("x")], {}, "mine: a constraint names the table 'x', which the task does not have"),
        ([], {"together": [["a", "y"]]}, "'y', which the task does not have"),
        ([TableConstraint("a", ranks=[3])], {}, "on table 'a' names rank 3, outside 0..2"),
        ([TableConstraint("a", forbidden_ranks=[4])], {}, "rank 4, outside 0..2"),
        ([TableConstraint("a", ranks=[1], forbidden_ranks=[1])], {}, "on table 'a' allows no rank"),
        (
            [TableConstraint("a", ranks=[0]), TableConstraint("b", ranks=[1, 2])],
            {"together": [["a", "b"]]},
            "tables 'a', 'b' are kept together, but no rank is allowed for all; allow one",
        ),
    ],
)
def test_constraints_that_the_task_cannot_meet_are_refused(single, rest, message):
    with pytest.raises(TaskError, match=message):
        a_task(*single, **rest)


#: Only a tier of a sequence table can be `host_row_wise`.
WITHOUT_TIERS = tuple(name for name in SHARDING_TYPES if name != "host_row_wise")


def types_of(name="a", pooling="sum", world_size=4, ranks_per_host=2, single=(), **rest):
    table = Table(name, 100, 16, 1.0, pooling=pooling)
    return possible_types(Constraints(single, **rest), table, world_size, ranks_per_host)


def test_without_constraints_the_pooling_limits_the_types():
    assert types_of() == WITHOUT_TIERS
    assert types_of(pooling="mean") == ("column_wise", "data_parallel")
    assert types_of(pooling="none") == ("column_wise", "row_wise")


@pytest.mark.parametrize(
    ("single", "possible"),
    [
        (TableConstraint("a", ranks=[0, 1]), ("column_wise", "table_row_wise", "grid_shard")),
        (TableConstraint("a", ranks=[1, 2]), ("column_wise",)),
        (TableConstraint("a", forbidden_ranks=[1]), ("column_wise", "table_row_wise", "grid_shard")),
        (TableConstraint("a", split=False), ("column_wise", "data_parallel")),
        (TableConstraint("a", sharding_types=["table_wise", "row_wise"]), ("column_wise", "row_wise")),
        (TableConstraint("a", sharding_types=["data_parallel"]), ("data_parallel",)),
        (TableConstraint("b", sharding_types=["data_parallel"]), WITHOUT_TIERS),
    ],
)
def test_ranks_splits_and_types_limit_the_types(single, possible):
    assert types_of(single=[single]) == possible


def test_tables_kept_together_are_column_wise():
    assert types_of(together=[["a", "b"]]) == ("column_wise",)
    assert types_of(name="c", together=[["a", "b"]]) == WITHOUT_TIERS


def test_a_table_may_have_the_types_that_its_own_and_the_general_constraint_allow():
    constraints = Constraints(
        [
            TableConstraint("a", sharding_types=["column_wise", "row_wise"]),
            TableConstraint("b", sharding_types=["table_wise", "data_parallel"]),
        ],
        sharding_types=["table_wise", "row_wise"],
    )
    assert constraints.of("a").sharding_types == ("table_wise", "row_wise")
    assert constraints.of("a").max_shards == 1
    assert constraints.of("b").sharding_types == ("table_wise",)
    assert constraints.of("c").sharding_types == ("table_wise", "row_wise")
    assert Constraints(sharding_types=["column_wise", "table_wise"]).of("c").max_shards is None
    assert Constraints(sharding_types=["row_wise"]).of("c").max_shards is None


def test_a_violation_names_the_type_and_those_that_are_allowed():
    constraint = TableConstraint("a", sharding_types=["table_wise", "row_wise"])
    assert type_violation(constraint, "column_wise") == ""
    assert type_violation(constraint, "data_parallel") == "is data_parallel, but may only be column_wise or row_wise"
    assert type_violation(TableConstraint("a", split=False), "row_wise").startswith("is row_wise, but")


@given(
    world_size=st.sampled_from([1, 2, 4, 6]),
    hosts=st.sampled_from([1, 2]),
    pooling=st.sampled_from(["sum", "none"]),
    ranks=st.none() | st.sets(st.integers(0, 5), min_size=1),
    forbidden=st.sets(st.integers(0, 5), max_size=2),
    split=st.booleans(),
    own=st.none() | st.sets(st.sampled_from(["table_wise", *SHARDING_TYPES]), min_size=1),
    general=st.none() | st.sets(st.sampled_from(["table_wise", *SHARDING_TYPES]), min_size=1),
)
def test_a_task_is_refused_exactly_if_a_table_has_no_possible_type_or_its_ranks_are_impossible(
    world_size, hosts, pooling, ranks, forbidden, split, own, general
):
    tables = [Table("a", 100, 16, 1.0, pooling=pooling)]
    local = world_size // hosts if world_size % hosts == 0 else None
    named = {rank for rank in {*(ranks or ()), *forbidden} if rank >= world_size}
    try:
        constraints = Constraints(
            [TableConstraint("a", ranks, forbidden, split=split, sharding_types=own)], sharding_types=general
        )
        task = ShardingTask(tables, world_size, 32, 2**20, constraints=constraints, local_world_size=local)
    except TaskError:
        free = ShardingTask(tables, world_size, 32, 2**20, local_world_size=local)
        usable = {rank for rank in (range(world_size) if ranks is None else ranks) if rank not in forbidden}
        assert named or not usable or not _allowed_by_hand(free, usable, split, own, general)
    else:
        assert not named
        usable = {*constraints.of("a").allowed_ranks(world_size)}
        assert {*task.possible_types(tables[0])} == _allowed_by_hand(task, usable, split, own, general) != set()


def _allowed_by_hand(task, usable, split, own, general):
    """The possible types of the only table, by a second statement of the rules."""
    possible = set()
    hosts = [set(range(first, first + task.ranks_per_host)) for first in range(0, task.world_size, task.ranks_per_host)]
    for name in WITHOUT_TIERS:
        words = {"column_wise": {"column_wise", "table_wise"}}.get(name, {name})
        is_named = all(not types or words & types for types in (own, general))
        reach = [set(range(task.world_size))] if name in ("row_wise", "data_parallel") else hosts
        has_room = name == "column_wise" or any(ranks <= usable for ranks in reach)
        keeps_rows = name in ("column_wise", "data_parallel")
        is_held = task.tables[0].pooling != "none" or name in ("column_wise", "row_wise")
        if is_named and has_room and (split or keeps_rows) and is_held:
            possible.add(name)
    return possible


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableConstraint("a", sharding_types=[]), "must be a list of at least one type"),
        (lambda: TableConstraint("a", sharding_types="row_wise"), "must be a list of at least one type"),
        (
            lambda: TableConstraint("a", sharding_types=["rowwise"]),
            "sharding type 'rowwise' is unknown; use table_wise, c",
        ),
        (lambda: Constraints(sharding_types=["dp"]), "sharding type 'dp' is unknown"),
        (lambda: TableConstraint("a", split=False, sharding_types=["row_wise"]), "split is false, but row_wise splits"),
        (
            lambda: Constraints([TableConstraint("a", sharding_types=["row_wise"])], sharding_types=["table_wise"]),
            "table 'a' may be row_wise, but all tables may only be table_wise; allow a common type",
        ),
        (
            lambda: Constraints([TableConstraint("a", sharding_types=["row_wise"])], [["a", "b"]]),
            "table 'a' is kept together with others and so not split; allow table_wise",
        ),
        (
            lambda: a_task(TableConstraint("a", ranks=[0, 1], sharding_types=["row_wise", "data_parallel"])),
            "table 'a' can have none .*row_wise: it needs every rank, .*; data_parallel: it needs every rank",
        ),
        (
            lambda: a_task(TableConstraint("a", ranks=[0, 1], sharding_types=["grid_shard"])),
            "grid_shard: it needs all ranks of a host",
        ),
    ],
)
def test_types_that_no_plan_can_have_are_refused(make, message):
    with pytest.raises(TaskError, match=message):
        make()


def test_a_sequence_table_of_a_type_that_torchrec_cannot_hold_is_refused():
    constraints = Constraints(sharding_types=["table_row_wise", "data_parallel"])
    assert ShardingTask(TABLES, 3, 32, 2**20, constraints=constraints).possible_types(TABLES[0])
    with pytest.raises(TaskError, match=r"table 's' can have none .*data_parallel: TorchRec cannot hold a sequence"):
        ShardingTask([Table("s", 100, 16, 1.0, pooling="none")], 3, 32, 2**20, constraints=constraints)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableConstraint("a", ranks=[]), "on table 'a': ranks is empty"),
        (lambda: TableConstraint("a", ranks=[1.5]), "rank 1.5 must be a whole number"),
        (lambda: TableConstraint("a", forbidden_ranks=[-1]), "rank -1 must be a whole number from 0"),
        (lambda: TableConstraint("a", min_width=0), "min_width 0 must be"),
        (lambda: TableConstraint("a", max_shards=0), "max_shards 0 must be"),
        (lambda: Constraints([TableConstraint("a"), TableConstraint("a")]), "'a' has 2 constraints"),
        (lambda: Constraints(together=[["a"]]), "needs at least two"),
        (lambda: Constraints(together=[["a", "b"], ["b", "c"]]), "'b' occurs 2 times in groups"),
    ],
)
def test_impossible_constraints_are_refused(make, message):
    with pytest.raises(TaskError, match=message):
        make()


def test_a_frame_of_tasks_does_not_drop_constraints_silently():
    with pytest.raises(TaskError, match="mine: a frame has no columns for constraints"):
        tasks_to_frame([a_task(min_width=8)])
    assert len(tasks_to_frame([dataclasses.replace(a_task(), constraints=UNCONSTRAINED)])) == 4
