"""Tasks that need too much memory or time are refused, and the message names what fits; others are solved."""

from __future__ import annotations

import re

import pytest
import warm
from sharders.policy_makers import untrained_policies

from neuroshard_pipeline.errors import TaskError, TooLargeError
from neuroshard_pipeline.search import room
from neuroshard_pipeline.search.room import require_room
from neuroshard_pipeline.sharders.registry import SHARDERS, shard, solve_all
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.small_models import small_models
from search.small_step import step_models


def task(world_size: int, num_tables: int = 10, batch_size: int = 4096, memory_bytes: int = 2**30) -> ShardingTask:
    tables = [Table(f"t{index}", 1000 * (index + 1), 64, 5.0) for index in range(num_tables)]
    return ShardingTask(tables, world_size, batch_size, memory_bytes)


@pytest.mark.parametrize("sharder", ["neuroshard", "neuroshard_plus", "milp", "torchrec"])
@pytest.mark.parametrize("world_size", [10**5, 10**6])
def test_a_search_over_absurdly_many_ranks_is_refused_with_the_number_that_can_be_searched(sharder, world_size):
    with pytest.raises(TooLargeError, match=rf"10 tables on {world_size} ranks .*; use at most \d+ ranks, or"):
        shard(task(world_size), small_models(), sharder)


@pytest.mark.parametrize("sharder", ["random", "lookup_greedy", "embark"])
def test_a_sharder_without_a_search_answers_for_very_many_ranks(sharder):
    plan = shard(task(20_000), small_models(), sharder)
    assert len(plan.memory_bytes) == 20_000
    assert plan.predicted_cost_ms > 0


@pytest.mark.parametrize("sharder", SHARDERS)
def test_every_sharder_refuses_ranks_that_no_machine_can_hold(sharder):
    with pytest.raises(TooLargeError, match=r"a plan for 10 tables on 2147483648 ranks needs up to .* GiB of memory"):
        shard(task(2**31), small_models(), sharder, policies=untrained_policies())


def test_a_refusal_is_an_attempt_without_a_plan():
    solutions = solve_all([task(10**5)], ["lookup_greedy", "neuroshard"], small_models())
    assert [plan.sharder for plan in solutions.plans] == ["lookup_greedy"]
    assert solutions.failures["error"].str.contains("use at most").tolist() == [True]


def test_the_number_in_the_message_is_the_largest_that_fits(monkeypatch):
    per_rank, other = 2**20, 2**29
    monkeypatch.setattr(room, "available_memory_bytes", lambda: 2**30)
    for refused in (513, 10**6):
        with pytest.raises(TooLargeError, match=r"this machine has 1 GiB left; use at most 512 ranks$"):
            require_room(task(refused), "a test", per_rank, other)
    require_room(task(512), "a test", per_rank, other)
    with pytest.raises(TooLargeError, match="use fewer tables, or a machine with more memory"):
        require_room(task(1), "a test", per_rank, 2**30)


def test_in_little_memory_a_search_is_refused_before_it_allocates_and_a_smaller_one_succeeds(tmp_path):
    code = """
import resource, psutil
from search.test_room import task, small_models, shard, TooLargeError
shard(task(4), small_models(), "neuroshard")  # compiles and imports everything
limit = psutil.Process().memory_info().vms + 400 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
shard(task(500), small_models(), "neuroshard")
try:
    shard(task(5000), small_models(), "neuroshard")
except TooLargeError as refusal:
    print(refusal)
"""
    (tmp_path / "program.py").write_text(code)
    done = warm.run(tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    assert re.search(r"10 tables on 5000 ranks needs up to .* GiB left; use at most \d+ ranks", done.stdout)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 10**12}, "world_size 1000000000000 must be a whole number from 1 to 2147483648"),
        ({"world_size": 2, "batch_size": 10**12}, "batch_size 1000000000000 must be a whole number from 1"),
        ({"world_size": 2, "memory_bytes": 10**20}, "memory_bytes 100000000000000000000 must be a whole number from 1"),
    ],
)
def test_values_above_the_upper_limits_are_refused(changes, message):
    with pytest.raises(TaskError, match=message):
        task(**changes)


@pytest.mark.parametrize("batch_size", [2**20, 2**31])
def test_the_largest_batches_are_answered(batch_size):
    """Twice the samples cost more, but less than twice as much. Costs that are negative or NaN violate this, too."""
    sizes = (batch_size // 2, batch_size)
    half_ms, whole_ms = (shard(task(4, batch_size=b), step_models(), "neuroshard").predicted_cost_ms for b in sizes)
    assert half_ms < whole_ms < 2 * half_ms


def test_thousands_of_tables_on_few_ranks_need_no_quadratic_memory(tmp_path):
    code = """
import resource, psutil
from search.test_room import task, small_models, shard
shard(task(4), small_models(), "lookup_greedy")
limit = psutil.Process().memory_info().vms + 2**29
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(shard(task(8, num_tables=7000, memory_bytes=2**44), small_models(), "lookup_greedy"))
"""
    (tmp_path / "program.py").write_text(code)
    done = warm.run(tmp_path / "program.py")
    assert "7000 tables in 7000 shards on 8 ranks" in done.stdout, done.stderr[-500:]
