import dataclasses

import pytest
from hypothesis import given, settings

from neuroshard_pipeline.search.exact_fit import fit_exactly
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.constrained_tasks import constrained_tasks, fits_somehow
from search.settings import WEIGHTS_AND_OPTIMIZER


@settings(max_examples=40)
@given(constrained_tasks())
def test_an_arrangement_is_found_if_and_only_if_one_exists(case):
    fit = fit_exactly(*case)
    assert (fit.shards is not None) == fits_somehow(*case)
    assert fit.impossible == (fit.shards is None)


def test_widths_that_halving_cannot_produce_are_found():
    table = Table("t", 1000, 20, 1.0)  # 80,000 bytes: 12 + 8 columns
    task = ShardingTask([table], 2, 16, [48_000, 32_000], constraints=Constraints(min_width=8, max_shards=2))
    assert fit_exactly(task, WEIGHTS_AND_OPTIMIZER).shards == [(0, 12, 0), (0, 8, 1)]
    one_byte_less = dataclasses.replace(task, memory_bytes=[47_999, 32_000])
    assert fit_exactly(one_byte_less, WEIGHTS_AND_OPTIMIZER).impossible


@pytest.mark.parametrize("rows", [1_000, 100_000, 10_000_000])
def test_one_byte_less_is_proved_impossible(rows):
    tables = [Table(f"t{i}", rows + 7 * i, 20, 1.0) for i in range(4)]
    needed = sum(table.weight_bytes for table in tables)
    for world_size in (1, 2):
        limits = [needed] if world_size == 1 else [needed - tables[1].weight_bytes, tables[1].weight_bytes]
        task = ShardingTask(tables, world_size, 16, limits)
        assert fit_exactly(task, WEIGHTS_AND_OPTIMIZER).shards is not None
        one_byte_less = dataclasses.replace(task, memory_bytes=[limits[0] - 1, *limits[1:]])
        assert fit_exactly(one_byte_less, WEIGHTS_AND_OPTIMIZER).impossible


def test_narrow_tables_share_the_host_memory_of_the_ranks_exactly():
    """Tables of 4 columns beside one of 12, of which one rank has room for 8 columns."""
    widths = {"narrow": 4, "thin": 4, "wide": 12}
    tables = [Table(name, 1000, width, 1.0, compute_kernel="fused_uvm") for name, width in widths.items()]
    task = ShardingTask(tables, 2, 16, 2**40, host_memory_bytes=48_000)
    for host_limits, possible in (([32_000, 48_000], True), ([31_999, 48_000], False)):
        fit = fit_exactly(task, WEIGHTS_AND_OPTIMIZER, host_limits)
        assert (fit.shards is not None) == possible == (not fit.impossible)


def test_an_integer_program_that_is_too_large_gives_no_answer():
    task = ShardingTask([Table(f"t{i}", 1000, 20, 1.0) for i in range(600)], 4, 16, 12_000_000)
    fit = fit_exactly(task, WEIGHTS_AND_OPTIMIZER)
    assert fit.shards is None
    assert not fit.impossible
