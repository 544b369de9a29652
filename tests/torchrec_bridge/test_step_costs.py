"""Random plans, their measured steps, and the step cost model that is fitted to them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT

from neuroshard_pipeline.cost_models import CostModels, load_cost_models
from neuroshard_pipeline.cost_models.step import StepCostModel, fit_prices
from neuroshard_pipeline.errors import CostModelError, TaskError
from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.tables.frames import tables_to_frame, tasks_to_frame
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.row_blocks import last_rank_has_rows
from neuroshard_pipeline.tables.step_work import QUANTITIES, rank_work, torchrec_type
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_bridge.step_costs.drawing import StepPlanParams, random_plans
from neuroshard_pipeline.torchrec_bridge.step_costs.fitting import MeasuredSteps, fit_step_costs
from neuroshard_pipeline.torchrec_bridge.step_costs.measuring import COLUMNS, measure_step_costs, measures_steps
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams

VALUES = yaml.safe_load((ROOT / "conf/base/parameters_measure.yml").read_text())["measure"]
PRICES = {
    "input_dist": {"groups": 1.5, "bags": 20.0, "ids": 3.0, "sent_ids": 4.0},
    "module": {"groups": 1.0, "bags": 60.0, "returned": 4.0, "permuted": 100.0},
    "dense": {"replicas": 1.2, "gradients": 2.0},
}


def drawing(**changes) -> StepPlanParams:
    return StepPlanParams(**{**VALUES["step_plans"], **changes})


def pool(batch_sizes=(128, 512, 1024)) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = []
    for batch_size in batch_sizes:
        tables = [
            Table(f"t{index}-{batch_size}", int(10 ** rng.uniform(0.5, 5)), 4, float(np.exp(rng.uniform(0, 4))))
            for index in range(100)
        ]
        tables = [with_profile(table, batch_size) for table in tables]
        frames.append(tables_to_frame(tables).assign(batch_size=batch_size, data_type="fp32"))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return random_plans(pool(), drawing())


@pytest.fixture(scope="module")
def models() -> CostModels:
    """Networks and reductions of a modelled GPU, with prices that are known."""
    shipped = load_cost_models("h100")
    assert shipped.step is not None
    return dataclasses.replace(shipped, step=StepCostModel({2: PRICES}, shipped.step.reductions))


def test_plans_have_three_types_and_quantities_that_are_not_collinear(plans):
    assert len({(plan.task.task_id, plan.sharder) for plan in plans}) == len(plans) == 64
    types = {shard.sharding_type for plan in plans for shard in plan.shards}
    assert types == {"column_wise", "row_wise", "data_parallel"}
    work = np.concatenate([rank_work(plan.task, plan.shards, plan.ranks) for plan in plans])
    unmeasured = {"deduplicated", "expanded", "host_link"}  # of ids that are sent once, tiers and GPUs
    assert {name for name, std in zip(QUANTITIES, work.std(axis=0), strict=True) if std == 0} == unmeasured
    assert {plan.task.comm_precision for plan in plans} == {"fp32", "fp16"}
    names = ["features", "ids", "pooled", "gradients"]
    correlation = np.corrcoef(work[:, [list(QUANTITIES).index(name) for name in names]].T) - np.eye(len(names))
    assert np.abs(correlation).max() < 0.9


def test_sequence_tables_have_one_width_and_their_cut_shards_too(plans):
    tasks = set()
    for plan in plans:
        sequences = [shard for shard in plan.shards if shard.table.pooling == "none"]
        tasks |= {plan.task.task_id} if sequences else set()
        assert len({shard.table.embedding_dim for shard in sequences}) <= 1
        assert len({shard.embedding_dim for shard in sequences if torchrec_type(shard) == "column_wise"}) <= 1
        assert {torchrec_type(shard) for shard in sequences} <= {"column_wise", "table_wise", "row_wise"}
    assert 4 <= len(tasks) <= 16


def test_ranks_look_up_equally_much_in_every_second_plan(plans):
    """The largest of the ranks' looked-up floats over their mean, by number of the plan; large tables are an excess."""
    excess = {"random-0": [], "random-1": []}
    for plan in plans:
        floats = np.zeros(plan.task.world_size)
        for shard, rank in zip(plan.shards, plan.ranks, strict=True):
            copies = plan.task.world_size if shard.sharding_type == "data_parallel" else 1
            floats[rank] += shard.table.pooling_factor * shard.row_share * shard.embedding_dim / copies
        excess[plan.sharder].append(floats.max() / floats.mean())
    assert np.median(excess["random-1"]) < 1.05 < 1.2 < np.median(excess["random-0"])


def test_the_seed_determines_the_plans():
    of_pool, few = pool(), drawing(tasks=4)
    plans = random_plans(of_pool, few)
    assert random_plans(pool(), few) == plans
    assert random_plans(of_pool, drawing(tasks=4, seed=1)) != plans
    assert random_plans(of_pool, drawing(tasks=0)) == []


def test_plans_on_more_ranks_than_a_host_has_are_on_several_hosts():
    few = drawing(world_sizes=(2, 4), tasks=12, spread_share=1.0, mean_share=0.0, max_tables_per_4_ranks=40)
    plans = random_plans(pool(), few, 2)
    assert {(plan.task.world_size, plan.task.num_hosts) for plan in plans} == {(2, 1), (4, 2)}
    placed = [(plan, shard, rank) for plan in plans for shard, rank in zip(plan.shards, plan.ranks, strict=True)]
    hosts = {
        (id(plan), shard.table.name): set() for plan, shard, _ in placed if shard.sharding_type == "table_row_wise"
    }
    for plan, shard, rank in placed:
        if shard.sharding_type == "table_row_wise":
            hosts[id(plan), shard.table.name].add(rank // 2)
    assert {len(of_table) for of_table in hosts.values()} == {1}
    cut = {(shard.table, plan.task.world_size) for plan, shard, _ in placed if shard.sharding_type == "row_wise"}
    assert all(last_rank_has_rows(table.num_embeddings, world_size) for table, world_size in cut)
    types = {task: {shard.sharding_type for plan, shard, _ in placed if plan.task.num_hosts == task} for task in (1, 2)}
    assert types[1] == types[2] - {"table_row_wise", "grid_shard"} == {"column_wise", "row_wise", "data_parallel"}
    shares = [np.mean([shard.sharding_type == "table_row_wise" for shard in plan.shards]) for plan in plans]
    assert max(shares) > 0.8


def test_a_batch_size_that_the_pool_lacks_is_named():
    with pytest.raises(TaskError, match="tables of batch size 64"):
        random_plans(pool(), drawing(batch_size=64, other_batch_share=0.0))


def test_plans_are_read_back_from_the_frames_of_the_measure_stage(plans):
    plans = plans[:16]
    tasks = {plan.task.task_id: plan.task for plan in plans}
    read = MeasuredSteps.from_frames(tasks_to_frame(list(tasks.values())), plans_frame(plans), pd.DataFrame())
    assert [(plan.task, plan.shards, plan.ranks, plan.sharder) for plan in read.plans] == [
        (plan.task, plan.shards, plan.ranks, plan.sharder) for plan in plans
    ]


def test_no_plans_are_read_from_empty_frames():
    assert MeasuredSteps.from_frames(tasks_to_frame([]), plans_frame([]), measure_step_costs([], steps())).plans == ()


@pytest.fixture(scope="module")
def predicted(plans, models) -> dict:
    """The cost of every plan under `models`, by the plan's `id`."""
    return {id(plan): priced(plan, models).predicted for plan in plans}


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_fitted_prices_predict_held_out_steps_and_the_price_of_gradients_is_found(plans, models, predicted, noise):
    costs = steps_with(plans, predicted, noise)
    measured = MeasuredSteps(tuple(plans), costs)
    found, metrics = fit_step_costs(measured, models.compute, models.comm, models.step.reductions, {"run_id": "r"})
    error = metrics["2"]["step"]["median_error"]
    assert error < 0.02 + noise  # it is 0.015 because of the shrinkage, else 0.001
    assert found.errors["step"] < 0.03 + noise
    assert found.errors["input_dist"] < 0.05 + noise
    assert found.provenance == {"run_id": "r"}
    assert found.prices[2]["dense"]["gradients"] == pytest.approx(2.0, rel=0.05 + 5 * noise)
    assert all(price >= 0 for of in found.prices[2].values() for price in of.values())


def test_shrinkage_keeps_delays_from_becoming_the_price_of_a_volume_that_few_ranks_have():
    """Half of the ranks with bucketized ids are delayed, by 40 times what these ids cost, and a third of all ranks."""
    names, true, found = ("groups", "sent_ids", "bucketized"), np.array([1.5, 10.0, 5.0]), []
    for seed in range(20):
        rng, work = np.random.default_rng(seed), np.zeros((60, len(QUANTITIES)))
        own = np.column_stack([rng.integers(1, 3, 60), rng.uniform(0, 0.2, 60), np.zeros(60)])
        own[:8, 2] = rng.uniform(0, 0.01, 8)
        work[:, [list(QUANTITIES).index(name) for name in names]] = own
        exact_ms, delays_ms = own @ true, 2.0 * (rng.random(60) < 0.3)
        delays_ms[:8] = 2.0 * (rng.random(8) < 0.5)
        exact = fit_prices(names, work, exact_ms, exact_ms)
        assert [exact[name] for name in names] == pytest.approx(true, rel=1e-6)
        cost_ms = exact_ms + delays_ms
        found.append([[*fit_prices(names, work, cost_ms, cost_ms, by).values()] for by in (0.0, 0.05)])
    plain, shrunk = np.mean(found, axis=0)
    assert shrunk[2] < 0.6 * plain[2]
    assert shrunk[:2] == pytest.approx(true[:2], rel=0.25)


def test_steps_of_a_single_task_are_refused(plans, models, predicted):
    of_task = [plan for plan in plans if plan.task.task_id == plans[0].task.task_id]
    measured = MeasuredSteps(tuple(of_task), steps_with(of_task, predicted, 0.0))
    with pytest.raises(CostModelError, match=r"one task only.*measure.step_plans.tasks to at least 2"):
        fit_step_costs(measured, models.compute, models.comm, models.step.reductions, {})


def test_virtual_ranks_determine_prices_by_their_own_times_and_not_by_those_of_steps(plans, models, predicted):
    """The steps are wrong by a factor of their own, and all ranks wait; only errors of steps show the factor."""
    costs = steps_with(plans, predicted, noise=0.0, are_virtual=True)
    costs["step_ms"] *= np.random.default_rng(1).permutation(np.repeat([0.8, 1.25], len(plans) // 2)).repeat(2)
    measured = MeasuredSteps(tuple(plans), costs)
    found, metrics = fit_step_costs(measured, models.compute, models.comm, models.step.reductions, {})
    assert metrics["2"]["input_dist"]["median_error"] < 0.01
    assert metrics["2"]["step"]["median_error"] > 0.1
    assert found.prices[2]["dense"]["gradients"] == pytest.approx(2.0, rel=0.05)


def steps_with(plans: list[Plan], predicted: dict, noise: float, are_virtual: bool = False) -> pd.DataFrame:
    """Measurements of a machine whose steps cost what is predicted, up to some noise.

    All ranks wait for the slowest input dist; on virtual ranks, the waiting is known. A third of the other cost of the
    input dist is a transfer.
    """
    rng = np.random.default_rng(0)
    rows = []
    for plan in plans:
        cost = predicted[id(plan)]
        step_ms = cost.embedding_cost_ms * np.exp(noise * rng.normal())
        for rank, own_ms in enumerate(cost.input_dist_ms):
            measured = max(cost.input_dist_ms) * np.exp(noise * rng.normal())
            rows.append({"task_id": plan.task.task_id, "sharder": plan.sharder, "rank": rank, "step_ms": step_ms})
            rows[-1]["input_dist_ms"] = measured
            if are_virtual:
                rest_ms = sum(of[rank] for of in (cost.forward_compute_ms, cost.backward_compute_ms, cost.module_ms))
                rows[-1] |= {"input_dist_computed_ms": own_ms / 1.5, "input_dist_waiting_ms": measured - own_ms}
                rows[-1]["computed_ms"] = own_ms / 1.5 + rest_ms
    return pd.DataFrame(rows)


def steps(**changes) -> StepParams:
    return StepParams(**{**VALUES["steps"], **changes})


def test_steps_are_measured_only_with_the_device_and_backend_of_lookups_and_collectives():
    assert measures_steps("fbgemm_cpu", "gloo", steps())
    assert measures_steps("fbgemm_cuda", "nccl", steps(backend="nccl"))
    assert measures_steps("fbgemm_cpu", "topology", steps())
    assert not measures_steps("fbgemm_cuda", "topology", steps(backend="nccl"))
    assert not measures_steps("recorded", "gloo", steps())
    assert not measures_steps("fbgemm_cuda", "nccl", steps())


def test_every_plan_has_a_measured_step_on_every_rank():
    small = drawing(
        tasks=2,
        min_tables_per_4_ranks=10,
        max_tables_per_4_ranks=12,
        max_weight_bytes_per_rank=2**21,
        other_batch_share=0.0,
        batch_size=128,
    )
    every_kind = {"weighted_share": 1.0, "mean_share": 1.0, "half_precision_share": 1.0}
    plans = random_plans(pool((128,)), small.model_copy(update=every_kind))
    tables = [table for plan in plans for table in plan.task.tables]
    assert {(table.is_weighted, table.pooling) for table in tables} >= {(True, "sum"), (False, "mean")}
    costs = measure_step_costs(plans, steps(rounds=1, steps_per_round=2))
    assert tuple(costs.columns) == COLUMNS
    assert {tuple(row) for row in costs[["task_id", "sharder", "rank"]].to_numpy()} == {
        (plan.task.task_id, plan.sharder, rank) for plan in plans for rank in range(2)
    }
    assert (costs["step_ms"] > costs["input_dist_ms"]).all()
    assert (costs["input_dist_ms"] > 0).all()
    assert costs[list(COLUMNS[-3:])].isna().all(axis=None)
