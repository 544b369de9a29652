"""Nodes of the train_check pipeline."""

from __future__ import annotations

from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.evaluation.plan_samples import plans_frame
from neuroshard_pipeline.pipelines.params import ContestParams
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.sharders.base import RivalParams, SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams, TrainTaskParams
from neuroshard_pipeline.torchrec_bridge.train_check.problem import solve_problem, state_problem
from neuroshard_pipeline.torchrec_bridge.train_check.run import train_under_plans
from neuroshard_pipeline.torchrec_bridge.train_check.summary import summarise_training, training_table


def state_task(tasks: pd.DataFrame, params: TrainTaskParams) -> tuple[ShardingTask, tuple[Batch, ...]]:
    """State what is trained, and draw or read its batches."""
    return state_problem(tasks, params)


def solve_task(
    task: ShardingTask,
    compute_model: ComputeCostModel,
    comm_model: CommCostModel,
    contest: ContestParams,
    search: SearchParams,
    plus: PlusParams,
    memory: MemoryModel,
    rivals: RivalParams,
    training: TrainingParams,
) -> Solutions:
    """Let every sharder plan the task."""
    models, settings = CostModels(compute_model, comm_model), SharderSettings(search, plus, memory, rivals)
    return solve_problem(task, models, contest.sharders, settings, contest.seed, training)


def tabulate_plans(solutions: Solutions) -> pd.DataFrame:
    """The plans shard by shard."""
    return plans_frame(solutions.plans)


def train(solutions: Solutions, batches: tuple[Batch, ...], params: TrainingParams) -> pd.DataFrame:
    """Train under all plans in turns."""
    return train_under_plans(
        solutions.plans, batches, params, lambda each: tqdm(each, desc="train", unit=" rounds", disable=None)
    )


def compare_plans(steps: pd.DataFrame, solutions: Solutions, params: TrainingParams) -> dict[str, Any]:
    """Check that the losses agree, and set the speeds side by side."""
    return summarise_training(steps, solutions, params)


def tabulate_speeds(summary: dict[str, Any]) -> str:
    """The table that a person looks at."""
    return training_table(summary)
