"""The error of a search over all sharding types states what the whole task lacks, not what a part of it lacks."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.settings import LOCAL_SEARCH, PAPER_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from search.tasks import random_tables

from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

SETTINGS = SharderSettings(PAPER_SEARCH, LOCAL_SEARCH.model_copy(update={"max_rounds": 5}), WEIGHTS_AND_OPTIMIZER)
GIANT = Table("giant", 1_000_000, 4, 3.0)  # 16,000,000 bytes, in shards of 4,000,000 if 4 ranks have its rows


def plan_of(task: ShardingTask, sharder: str = "neuroshard_plus"):
    return shard(task, step_models(), sharder, SETTINGS)


def refusal(task: ShardingTask, sharder: str = "neuroshard_plus") -> str:
    with pytest.raises(DoesNotFitError) as caught:
        plan_of(task, sharder)
    return str(caught.value)


def named_bytes(words: str, message: str) -> int:
    """The bytes of the first amount after `words`."""
    return int(re.search(words + r"[^;]*?(\d+) bytes", message)[1])


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("sharder", ["neuroshard_plus", "embark"])
def test_the_missing_bytes_are_those_of_the_whole_task(share, sharder):
    tables = random_tables(np.random.default_rng(3), 6)
    task = ShardingTask(tables, 4, 2048, 2**40, local_world_size=2)
    needed = sum(WEIGHTS_AND_OPTIMIZER.shard_bytes(whole(table), task) for table in tables)
    message = refusal(replace(task, memory_bytes=int(share * needed / 4)), sharder)
    assert f"the tables need {memory_text(needed)} but" in message
    assert named_bytes("ranks have .*?: ", message) == needed - 4 * int(share * needed / 4)
    assert named_bytes("of at least ", message) == -(-needed // 4)


def test_the_amount_for_a_table_counts_that_its_rows_may_be_cut():
    task = ShardingTask([GIANT], 4, 2048, 3_000_000)
    assert named_bytes("of at least ", refusal(task)) == 4_000_000
    assert plan_of(replace(task, memory_bytes=4_000_000)).memory_bytes == (4_000_000,) * 4
    columns_only = refusal(task, "neuroshard")
    assert named_bytes("of at least ", columns_only) == 16_000_000
    assert "cuts columns only" in columns_only


def test_a_table_whose_shards_are_too_large_is_named_if_the_total_fits():
    """The giant may not be cut, and there is room for it in all ranks together, but in none of them."""
    whole_only = Constraints([TableConstraint("giant", split=False)])
    task = ShardingTask([GIANT, Table("small", 100, 4, 1.0)], 4, 2048, 5_000_000, constraints=whole_only)
    message = refusal(task)
    assert "'giant'" in message
    assert named_bytes("of at least ", message) == 16_000_000
    assert plan_of(replace(task, memory_bytes=16_000_000)).memory_bytes.count(16_000_000) == 1


def test_tables_that_must_be_replicated_count_on_every_rank():
    copies = Constraints([TableConstraint("giant", sharding_types=("data_parallel",))])
    task = ShardingTask([GIANT], 4, 2048, 17_000_000, constraints=copies)
    replica = WEIGHTS_AND_OPTIMIZER.shard_bytes(whole(GIANT, "data_parallel"), task)
    assert named_bytes("of at least ", refusal(task)) == replica
    assert plan_of(replace(task, memory_bytes=replica)).memory_bytes == (replica,) * 4


@pytest.mark.parametrize("sharder", ["neuroshard_plus", "neuroshard"])
def test_a_search_without_a_packing_names_memory_that_is_enough(sharder):
    """Three tables of 16,000,000 bytes that cannot be cut fill 80 % of two ranks, and no two of them fit one rank."""
    tables = [Table(f"t{index}", 1_000_000, 4, 2.0, pooling="mean") for index in range(3)]
    task = ShardingTask(tables, 2, 2048, 30_000_000)
    message = refusal(task, sharder)
    assert "80.0 %" in message
    assert plan_of(replace(task, memory_bytes=named_bytes("ranks of about ", message)), sharder)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.35]))
def test_every_amount_of_memory_that_a_refusal_calls_least_is_needed(rows, world_size, reserve):
    tables = [Table(f"t{index}", count, 8, 1.0) for index, count in enumerate(rows)]
    memory = WEIGHTS_AND_OPTIMIZER.model_copy(update={"reserve_fraction": reserve})
    task = ShardingTask(tables, world_size, 16, 1)  # a reserve leaves 0 bytes of 1
    with pytest.raises(DoesNotFitError) as caught:
        check_room(task, memory)
    least = named_bytes("of at least ", str(caught.value))
    with pytest.raises(DoesNotFitError):
        check_room(replace(task, memory_bytes=least - 1), memory)
    check_room(replace(task, memory_bytes=least + 1), memory)  # a reserve is rounded to a byte


@given(st.integers(2**20, 2**60))
def test_an_amount_in_gib_is_enough_and_hardly_more(count):
    gib = float(re.match(r"(\S+) GiB", memory_text(count))[1])
    assert count / 2**30 <= gib * (1 + 1e-12) <= 1.0011 * count / 2**30
