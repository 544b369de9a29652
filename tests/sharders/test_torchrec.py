"""TorchRec's own planner as a sharder, under the memory, the constraints and the hosts of the task."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.small_step import step_models
from torchrec_bridge.needs_torchrec import QUIET

from neuroshard_pipeline.errors import ConstraintError, DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders import torchrec
from neuroshard_pipeline.sharders.registry import make_sharder
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import TorchRecMissingError, require_torchrec
from neuroshard_pipeline.torchrec_plan.writer import Devices, torchrec_form

pytestmark = QUIET


def tables(count: int = 8) -> list[Table]:
    rng = np.random.default_rng(0)
    dims = rng.choice([4, 12, 32, 64, 128], count).tolist()
    return [Table(f"t{i}", int(10 ** rng.uniform(2, 5)), dim, float(rng.uniform(1, 30))) for i, dim in enumerate(dims)]


def shard(task: ShardingTask, memory: MemoryModel = WEIGHTS_AND_OPTIMIZER, models=None) -> Plan:
    problem = Problem(task, models or small_models(), memory)
    placement = TorchRecSharder().shard(problem, np.random.default_rng(0))
    return Plan(task, placement.shards, placement.ranks, "torchrec", memory=memory)


def types_of(plan: Plan) -> dict[str, str]:
    return {shard.table.name: shard.sharding_type for shard in plan.shards}


def torchrec_trains(plan: Plan) -> None:
    """Raises an error if TorchRec cannot train the plan on CPUs. GPUs can train every plan that CPUs can train."""
    devices = Devices(plan.task.world_size, plan.task.local_world_size, "cpu")
    torchrec_form(plan.task.tables, plan.shards, plan.ranks, devices, "module")


@pytest.mark.parametrize(("room", "optimizer", "state"), [(3.0, "sgd", 1), (1.1, "adam", 3)])
def test_plans_fit_and_are_repeatable(room, optimizer, state):
    per_rank = int(room * state * sum(table.weight_bytes for table in tables(8)) / 4)
    task = ShardingTask(tables(8), 4, 64, per_rank, optimizer)
    plan = shard(task)
    assert plan == shard(task)


def test_a_table_larger_than_a_rank_is_split():
    table = Table("large", 1000, 128, 5.0)
    plan = shard(ShardingTask([table], 4, 64, table.weight_bytes // 4))
    assert sorted(shard.embedding_dim for shard in plan.shards) == [32] * 4
    assert sorted(plan.ranks) == [0, 1, 2, 3]


@pytest.mark.parametrize("roomy", [0, 1])
def test_every_rank_has_its_own_limit(roomy):
    """The table goes whole to the only rank that has room for it. With room for it on both ranks, it is split."""
    table = Table("only", 1000, 64, 5.0)
    limits = [table.weight_bytes // 2 - 1] * 2
    limits[roomy] = table.weight_bytes
    plan = shard(ShardingTask([table], 2, 64, limits))
    assert [(shard.embedding_dim, rank) for shard, rank in zip(plan.shards, plan.ranks, strict=True)] == [(64, roomy)]
    assert len(shard(ShardingTask([table], 2, 64, table.weight_bytes)).shards) == 2


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


@pytest.mark.parametrize(("world_size", "local"), [(2, None), (4, 2), (8, 4), (6, 2)])
def test_plans_with_row_shards_fit_and_can_be_trained(world_size, local):
    room = int(1.2 * sum(table.weight_bytes for table in tables(8)) / world_size)
    task = ShardingTask(tables(8), world_size, 512, room, local_world_size=local)
    plan = shard(task, models=step_models())
    torchrec_trains(plan)
    assert plan == shard(task, models=step_models())
    assert not {"row_wise", "table_row_wise", "grid_shard"}.isdisjoint(types_of(plan).values())


@pytest.mark.parametrize("models", [small_models(), step_models()])
def test_with_fitted_numbers_plans_cost_less_than_with_torchrecs_own(models):
    task = ShardingTask(tables(8), 4, 512, 2**30, local_world_size=2)
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    costs = []
    for name in ("torchrec", "torchrec_fitted"):
        placement = make_sharder(name).shard(problem, np.random.default_rng(0))
        plan = price_plan(problem, placement, name)
        torchrec_trains(plan)
        costs.append(plan.predicted_cost_ms)
    assert costs[1] < costs[0]


def test_with_fitted_numbers_the_price_of_reductions_decides_whether_rows_are_split():
    """One table is looked up far more than the others. A split of its rows balances the lookups."""
    hot, cold = Table("hot", 100_000, 32, 100.0), [Table(f"cold{i}", 1000, 4, 1.0) for i in range(3)]
    task = ShardingTask([hot, *cold], 2, 512, 2**30, constraints=Constraints(min_width=32))
    found = []
    for ms_per_mib in (1e-6, 1e3):
        problem = Problem(task, step_models(ms_per_mib=ms_per_mib), WEIGHTS_AND_OPTIMIZER)
        placement = make_sharder("torchrec_fitted").shard(problem, np.random.default_rng(0))
        found.append(next(shard.sharding_type for shard in placement.shards if shard.table == hot))
    assert found == ["row_wise", "column_wise"]


def test_one_rank_needs_no_fit(monkeypatch):
    fits, fit_numbers = [], torchrec.fit_numbers
    monkeypatch.setattr(torchrec, "fit_numbers", lambda *args: fits.append(args) or fit_numbers(*args))
    for world_size in (1, 2):
        problem = Problem(ShardingTask(tables(4), world_size, 64, 2**30), step_models(), WEIGHTS_AND_OPTIMIZER)
        placement = make_sharder("torchrec_fitted").shard(problem, np.random.default_rng(0))
        assert {*placement.ranks} == {*range(world_size)}
        assert len(fits) == world_size - 1


def test_without_a_step_cost_model_all_plans_are_column_wise():
    task = ShardingTask(tables(8), 4, 512, 2**30, local_world_size=2)
    assert set(types_of(shard(task)).values()) == {"column_wise"}


def test_replicas_cause_no_warnings(caplog):
    """TorchRec warns that a replicated table has no sharding specification, although such tables never have one."""
    only = Constraints(sharding_types=("data_parallel",))
    shard(ShardingTask(tables(), 4, 64, 2**30, constraints=only), models=step_models())
    assert not [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_a_table_that_no_column_split_can_hold_is_split_by_rows():
    table = Table("giant", 10_000, 4, 5.0)
    task = ShardingTask([table], 4, 64, table.weight_bytes // 4)
    plan = shard(task, models=step_models())
    assert types_of(plan) == {"giant": "row_wise"}
    with pytest.raises(DoesNotFitError):
        shard(task)


@pytest.mark.parametrize("name", [name for name in SHARDING_TYPES if name != "host_row_wise"])
def test_a_table_gets_the_only_type_that_its_constraint_allows(name):
    only = Constraints((TableConstraint("t3", sharding_types=(name,)),))
    task = ShardingTask(tables(), 4, 64, 2**30, constraints=only, local_world_size=2)
    assert types_of(shard(task, models=step_models()))["t3"] == name


def test_table_wise_tables_are_not_split():
    whole_only = Constraints(sharding_types=("table_wise",))
    table = Table("large", 1000, 128, 5.0)
    for models in (small_models(), step_models()):
        task = ShardingTask([table], 4, 64, table.weight_bytes, constraints=whole_only)
        assert len(shard(task, models=models).shards) == 1


def test_limits_of_columns_and_shards_are_kept():
    limits = Constraints(min_width=32, max_shards=2, sharding_types=("column_wise",))
    table = Table("large", 1000, 128, 5.0)
    task = ShardingTask([table], 4, 64, table.weight_bytes // 2, constraints=limits)
    assert [shard.embedding_dim for shard in shard(task).shards] == [64, 64]


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints((TableConstraint("t0", ranks=(1,)),)),
        Constraints((TableConstraint("t0", forbidden_ranks=(1,)),)),
        Constraints(together=(("t0", "t1"),)),
    ],
)
def test_constraints_that_torchrec_does_not_know_are_refused(constraints):
    task = ShardingTask(tables(), 2, 64, 2**30, constraints=constraints)
    with pytest.raises(ConstraintError, match=r"'torchrec' cannot respect .* 't0'"):
        shard(task)


def test_a_table_without_a_usable_type_is_refused():
    table = Table("few", 5, 16, 5.0)
    constraints = Constraints(sharding_types=("row_wise",))
    task = ShardingTask([table], 4, 64, 2**30, constraints=constraints)
    with pytest.raises(ConstraintError, match=r"'few' can have none .*row_wise: .*none of its 5 rows"):
        shard(task, models=step_models())
    with pytest.raises(ConstraintError, match="needs a step cost model"):
        shard(task)


def test_sequence_mean_and_weighted_tables_are_planned():
    kinds = [
        Table("sequence", 100_000, 64, 5.0, pooling="none"),
        Table("other_width", 100_000, 32, 5.0, pooling="none", num_features=2),
        Table("mean", 100_000, 64, 5.0, pooling="mean"),
        Table("weighted", 100_000, 64, 6.0, num_features=3, is_weighted=True),
    ]
    task = ShardingTask(kinds, 4, 64, 2**30, local_world_size=2)
    plan = shard(task, models=step_models())
    torchrec_trains(plan)
    assert set(types_of(plan)) == {table.name for table in kinds}


def test_without_torchrec_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec.distributed", None)
    with pytest.raises(TorchRecMissingError, match="install the extra 'torchrec'"):
        require_torchrec()


def in_memory_of(task: ShardingTask) -> Placement:
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    return TorchRecSharder().shard(problem, np.random.default_rng(0))


def test_tables_may_be_in_host_memory_if_the_task_allows_it():
    equal = [Table(f"t{at}", 40_000, 32, 2.0) for at in range(2)]
    task = ShardingTask(equal, 2, 2048, equal[0].weight_bytes, host_memory_bytes=2**40)
    assert in_memory_of(task).task is None  # all of them fit GPU memory
    tight = replace(task, memory_bytes=equal[0].weight_bytes // 2)
    placement = in_memory_of(tight)
    assert any(table.is_in_host_memory for table in placement.task.tables)
    plan = price_plan(Problem(tight, step_models(), WEIGHTS_AND_OPTIMIZER), placement, "torchrec")
    assert plan.task == placement.task
    with pytest.raises(DoesNotFitError):
        in_memory_of(replace(tight, host_memory_bytes=equal[0].weight_bytes // 8))
