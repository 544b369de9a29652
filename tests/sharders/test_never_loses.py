"""No plan of `neuroshard_plus` is dearer than that of a sharder that uses no measurement, under the same models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.settings import LOCAL_SEARCH, PAPER_SEARCH
from search.small_step import step_models

from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.greedy import GREEDY_WEIGHTS
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

RIVALS = (*GREEDY_WEIGHTS, "embark", "neuroshard")
SETTINGS = SharderSettings(
    PAPER_SEARCH.model_copy(update={"max_steps": 2}), LOCAL_SEARCH.model_copy(update={"max_rounds": 3})
)


@st.composite
def tasks(draw) -> ShardingTask:
    """One to four tables of all poolings and data types, one to four ranks on one or several hosts, uneven memory."""
    world_size = draw(st.integers(1, 4))
    tables = [
        Table(
            f"t{number}",
            draw(st.integers(4, 5000)),
            draw(st.sampled_from([4, 12, 32])),
            draw(st.floats(0.5, 30)),
            data_type=draw(st.sampled_from(["fp32", "fp16"])),
            pooling=draw(st.sampled_from(["sum", "mean", "none"])),
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    largest = max(table.weight_bytes for table in tables)
    memory = [round(largest * draw(st.floats(0.5, 6))) for _ in range(world_size)]
    local = draw(st.sampled_from([size for size in range(1, world_size + 1) if world_size % size == 0]))
    return ShardingTask(tables, world_size, 64 * world_size, memory, local_world_size=local)


@settings(max_examples=15)
@given(tasks(), st.floats(0.001, 0.3))
def test_no_rival_has_a_cheaper_plan(task: ShardingTask, ms_per_mib: float):
    found = solve_all([task], ["neuroshard_plus", *RIVALS], step_models(ms_per_mib=ms_per_mib), SETTINGS)
    costs = {plan.sharder: plan.predicted_cost_ms for plan in found.plans}
    if costs:
        assert costs["neuroshard_plus"] <= 1.001 * min(costs.values())


def test_an_input_dist_costs_nothing_on_a_single_rank():
    """TorchRec exchanges no ids with one rank, so the tables of one rank cost the same with and without a pipeline."""
    tables = [Table("a", 500, 16, 2.0), Table("b", 90, 8, 5.0, pooling="mean")]
    tasks = [ShardingTask(tables, 1, 512, 2**30, task_id="now")]
    tasks.append(replace(tasks[0], task_id="ahead", pipelines_input_dist=True))
    plans = solve_all(tasks, ["neuroshard_plus", "embark"], step_models(), SETTINGS).plans
    assert [plan.predicted_cost_ms for plan in plans] == pytest.approx([plans[0].predicted_cost_ms] * 4)
    assert {shard.sharding_type for plan in plans for shard in plan.shards} == {"column_wise"}
