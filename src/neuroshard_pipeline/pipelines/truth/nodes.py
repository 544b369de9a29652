"""Nodes of the truth pipeline."""

from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.pipelines.params import ContestParams
from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.report.truth_tables import agreement_notes, part_rows, sharder_rows
from neuroshard_pipeline.search.models import check_hardware
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.torchrec_bridge.truth.params import TruthStepParams, TruthTaskParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import measure_steps, task_batches
from neuroshard_pipeline.torchrec_bridge.truth.variants import with_variants


def solve_tasks(
    tasks: pd.DataFrame,
    models: CostModels,
    contest: ContestParams,
    settings: SharderSettings,
    params: TruthStepParams,
    task_params: TruthTaskParams,
) -> Solutions:
    """Solve every task with every sharder, and add variants of one sharder's plans with other sharding types.

    The cost models must be for the kind of device that the ranks have.
    """
    check_hardware(models, params.compute_device)
    solved = solve_all(
        tasks_from_frame(tasks),
        contest.sharders,
        models,
        settings,
        contest.seed,
        lambda each: tqdm(each, desc="search", unit=" tasks", disable=None),
    )
    return with_variants(solved, task_params.variants_of, models)


def tabulate_plans(solutions: Solutions) -> pd.DataFrame:
    """All plans, one row per shard."""
    return plans_frame(solutions.plans)


def measure(solutions: Solutions, params: TruthStepParams) -> pd.DataFrame:
    """Measure steps of TorchRec's embedding module under all plans; the plans of a task take turns."""
    return measure_steps(
        solutions.plans,
        task_batches(solutions.plans, params),
        params,
        lambda groups: tqdm(groups, desc="measure", unit=" groups of plans", disable=None),
    )


def tabulate_summary(summary: dict[str, Any]) -> str:
    """The summary as tables for the terminal."""
    tables = [aligned_table(rows) for rows in (sharder_rows(summary), part_rows(summary))]
    return "\n\n".join([*tables, "\n".join(agreement_notes(summary))])
