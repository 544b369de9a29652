"""Nodes of the train_check pipeline."""

from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.pipelines.params import ContestParams
from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.problem import solve_problem
from neuroshard_pipeline.torchrec_bridge.train_check.summary import training_notes, training_rows


def solve_task(
    task: ShardingTask, models: CostModels, settings: SharderSettings, contest: ContestParams, training: TrainingParams
) -> Solutions:
    """Let every sharder plan the task."""
    return solve_problem(task, models, contest.sharders, settings, contest.seed, training)


def tabulate_plans(solutions: Solutions) -> pd.DataFrame:
    """All plans, one row per shard."""
    return plans_frame(solutions.plans)


def train(solutions: Solutions, batches: tuple[Batch, ...], params: TrainingParams) -> pd.DataFrame:
    """Train every model under every plan and dense mode; they take turns."""
    from neuroshard_pipeline.torchrec_bridge.train_check.run import train_under_plans  # late, because it imports torch

    return train_under_plans(
        solutions.plans, batches, params, lambda groups: tqdm(groups, desc="train", unit=" groups", disable=None)
    )


def tabulate_speeds(summary: dict[str, Any]) -> str:
    """The speeds as a table for the terminal."""
    return "\n".join([aligned_table(training_rows(summary)), *training_notes(summary)])
