import dataclasses

import pytest

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED, Constraints, TableConstraint
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.table import Table
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
        ([TableConstraint("a", forbidden_ranks=[-1])], {}, "rank -1, outside 0..2"),
        ([TableConstraint("a", ranks=[1], forbidden_ranks=[1])], {}, "on table 'a' allows no rank"),
        (
            [TableConstraint("a", ranks=[0]), TableConstraint("b", ranks=[1, 2])],
            {"together": [["a", "b"]]},
            "tables 'a', 'b' are kept together, but no rank is allowed for all of them",
        ),
    ],
)
def test_constraints_that_the_task_cannot_meet_are_refused(single, rest, message):
    with pytest.raises(TaskError, match=message):
        a_task(*single, **rest)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableConstraint("a", ranks=[]), "on table 'a': ranks is empty"),
        (lambda: TableConstraint("a", ranks=[1.5]), "rank 1.5 is not a whole number"),
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
    with pytest.raises(TaskError, match="mine: a frame of tasks has no columns for constraints"):
        tasks_to_frame([a_task(min_width=8)])
    assert len(tasks_to_frame([dataclasses.replace(a_task(), constraints=UNCONSTRAINED)])) == 4
