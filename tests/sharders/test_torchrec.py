"""TorchRec's own planner as a sharder, under the memory of the task."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from torchrec_bridge.needs_torchrec import QUIET

from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import TorchRecMissingError, require_torchrec

pytestmark = QUIET


def tables(count: int = 12) -> list[Table]:
    rng = np.random.default_rng(0)
    dims = rng.choice([4, 12, 32, 64, 128], count).tolist()
    return [Table(f"t{i}", int(10 ** rng.uniform(2, 5)), dim, float(rng.uniform(1, 30))) for i, dim in enumerate(dims)]


def shard(task: ShardingTask, memory: MemoryModel = WEIGHTS_AND_OPTIMIZER) -> Plan:
    placement = TorchRecSharder().shard(Problem(task, small_models(), memory), np.random.default_rng(0))
    return Plan(task, placement.shards, placement.ranks, "torchrec", memory=memory)


@pytest.mark.parametrize("room", [3.0, 1.1])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_plans_fit_and_are_repeatable(room, optimizer):
    state = 3 if optimizer == "adam" else 1
    per_rank = int(room * state * sum(table.weight_bytes for table in tables()) / 4)
    task = ShardingTask(tables(), 4, 64, per_rank, optimizer)
    plan = shard(task)
    assert plan == shard(task)


def test_a_table_larger_than_a_rank_is_split():
    table = Table("large", 1000, 128, 5.0)
    plan = shard(ShardingTask([table], 4, 64, table.weight_bytes // 4))
    assert sorted(shard.embedding_dim for shard in plan.shards) == [32] * 4
    assert sorted(plan.ranks) == [0, 1, 2, 3]


def test_every_rank_has_its_own_limit():
    table = Table("only", 1000, 64, 5.0)
    plan = shard(ShardingTask([table], 2, 64, (table.weight_bytes // 2 - 1, table.weight_bytes)))
    assert plan.memory_bytes[0] < table.weight_bytes // 2


@pytest.mark.parametrize("name", ["user.id", "keys", "weight", "a/b c"])
def test_table_names_that_pytorch_refuses_are_kept(name):
    table = Table(name, 1000, 64, 5.0)
    assert {shard.table.name for shard in shard(ShardingTask([table], 2, 64, 2**20)).shards} == {name}


def test_the_memory_model_decides_what_fits():
    table = Table("only", 1000, 64, 5.0)
    buffers = MemoryModel(optimizer_state=True, input_buffers=True, output_buffers=True, reserve_fraction=0.1)
    task = ShardingTask([table], 1, 64, table.weight_bytes)
    assert shard(task).memory_bytes == (table.weight_bytes,)
    with pytest.raises(DoesNotFitError, match="task: TorchRec's planner found no plan"):
        shard(task, memory=buffers)


def test_a_task_with_constraints_is_refused():
    task = ShardingTask([Table("only", 1000, 64, 5.0)], 2, 64, 2**20, constraints=Constraints(min_width=8))
    with pytest.raises(NeuroShardError, match="'torchrec' cannot respect constraints"):
        shard(task)


def test_without_torchrec_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec.distributed", None)
    with pytest.raises(TorchRecMissingError, match="install the extra 'torchrec'"):
        require_torchrec()
