import numpy as np
import pytest

from neuroshard_pipeline.search.halving import all_cut_alike, halved, may_halve
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.units import allowed_ranks, units_of
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED, Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

TABLES = [Table("a", 100, 16, 1.0), Table("b", 50, 8, 1.0), Table("c", 20, 20, 1.0)]


def a_task(constraints=UNCONSTRAINED):
    return ShardingTask(TABLES, 3, 32, 2**20, constraints=constraints)


def test_without_constraints_every_table_is_a_unit():
    units = units_of(a_task())
    assert [unit.members for unit in units] == [(0,), (1,), (2,)]
    assert [unit.width for unit in units] == [16, 8, 20]
    assert allowed_ranks(units, 3) is None


def test_tables_kept_together_are_one_unit_on_their_common_ranks():
    pins = [TableConstraint("a", ranks=[0, 1]), TableConstraint("c", forbidden_ranks=[0])]
    task = a_task(Constraints(pins, together=[["c", "a"]]))
    group, single = units_of(task)
    assert (group.members, group.width, group.ranks, group.finest) == ((0, 2), 36, (1,), [36])
    assert group.bytes(36, task, WEIGHTS_AND_OPTIMIZER) == 100 * 16 * 4 + 20 * 20 * 4
    assert single.members == (1,)
    assert Problem(task, None, WEIGHTS_AND_OPTIMIZER).whole_placement([1, 2]).ranks == (1, 2, 1)  # without cost models
    assert allowed_ranks((group, single), 3).tolist() == [[False, True, False], [True] * 3]


@pytest.mark.parametrize(
    ("constraint", "widths"),
    [
        ({}, [4] * 5),
        ({"min_width": 8}, [12, 8]),
        ({"min_width": 7}, [12, 8]),
        ({"max_shards": 3}, [8, 8, 4]),
        ({"min_width": 12}, [20]),
        ({"min_width": 100}, [20]),
        ({"split": False}, [20]),
    ],
)
def test_the_finest_split_keeps_the_constraints(constraint, widths):
    units = units_of(a_task(Constraints([TableConstraint("c", **constraint)])))
    assert units[2].finest == widths


def test_sequence_tables_of_any_width_are_cut_into_fewest_parts():
    tables = [Table(f"t{width}", 100, width, 1.0, pooling="none") for width in (4, 20, 36, 100)]
    task = ShardingTask(tables, 4, 32, 2**30)
    problem = Problem(task, None, WEIGHTS_AND_OPTIMIZER)
    states = [problem.whole_tables]
    while (chosen := np.flatnonzero(may_halve(states[-1], problem))).size:
        states.append(halved(states[-1], chosen, problem))
    assert [sorted(problem.width[state].tolist()) for state in states] == [
        [4, 20, 36, 100],
        [*[4] * 6, *[12] * 3, *[20] * 5],
        [4] * 40,
    ]
    assert [unit.finest for unit in problem.units] == [[4], [4] * 5, [4] * 9, [4] * 25]


@pytest.mark.parametrize(
    ("constraints", "finest"),
    [
        (UNCONSTRAINED, [4] * 24),
        (Constraints([TableConstraint("pooled", max_shards=8)]), [4] * 24),
        (Constraints([TableConstraint("one", max_shards=3)]), [48, 48]),
        (Constraints([TableConstraint("other", min_width=20)]), [24] * 4),
        (Constraints([TableConstraint("one", max_shards=1)]), [4] * 24),
        (Constraints(together=[["one", "pooled"]]), [4] * 24),
    ],
)
def test_sequence_tables_of_a_group_that_are_cut_have_as_many_equal_blocks(constraints, finest):
    pooled, *sequences = (
        Table(name, 100, 96, 1.0, pooling=kind)
        for name, kind in zip(("pooled", "one", "other"), ("sum", "none", "none"), strict=True)
    )
    task = ShardingTask([pooled, *sequences], 4, 32, 2**30, constraints=constraints)
    alone = [unit for unit in units_of(task) if unit.group is not None]
    assert {tuple(unit.finest) for unit in alone} == {tuple(finest)}
    problem = Problem(task, None, WEIGHTS_AND_OPTIMIZER)
    state = problem.whole_tables
    of_group = np.flatnonzero(problem.group[problem.unit[state]] >= 0)
    assert may_halve(state, problem)[of_group].all()
    one_cut = halved(state, of_group[:1], problem)
    expected = {
        (48, 48): one_cut,
        (48,) * 2 * len(alone): all_cut_alike(one_cut, problem),
        (24,) * 4: halved(one_cut, np.flatnonzero(problem.width[one_cut] == 48)[:1], problem),
    }
    for cut, found in expected.items():
        widths = problem.width[found][problem.group[problem.unit[found]] >= 0].tolist()
        assert [width for width in widths if width < 96] == [*cut]
        assert sum(widths) == 96 * len(alone)
