"""Plans of two pairs of cost models on fresh tasks, measured in one campaign."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.plan_samples import (
    CollectiveSamples,
    RankSamples,
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    plan_costs_frame,
    rank_compute_samples,
)
from neuroshard_pipeline.evaluation.refinement.campaigns import Campaigns, Measured
from neuroshard_pipeline.evaluation.refinement.params import JudgingParams
from neuroshard_pipeline.evaluation.refinement.predictions import predictions
from neuroshard_pipeline.evaluation.refinement.training_set import TrainingSet, training_set
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.task import ShardingTask

#: Separates the names of models and sharder while plans of several models are measured together.
_MARK = ": "


@dataclass(frozen=True)
class Judged:
    """Plans that several pairs of cost models led to, measured.

    Attributes:
        plan_costs: as `search.plan_costs`, with a column `models`.
        predictions: as `train.held_out`, of every pair of models on every shard set and collective of all plans, with
            columns `models` and `chosen` (whether a plan of these models contains the sample). Measured costs are
            freed of the drift since the training set was measured.
        drift: of the campaigns, for JSON.
    """

    plan_costs: pd.DataFrame
    predictions: pd.DataFrame
    drift: dict[str, Any]


def judge_plans(
    models: Mapping[str, CostModels],
    tasks: Sequence[ShardingTask],
    params: JudgingParams,
    settings: SharderSettings,
    campaigns: Campaigns,
) -> Judged:
    """Let searches plan tasks with every pair of models, and measure all plans side by side.

    Plans of one task stand next to each other in the campaigns, whatever models they come from, so that the machine's
    drift cannot decide between the models.

    Args:
        models: pairs of cost models by name.
        tasks: none of them may have been used to train or refine the models.
        params: sharders and seed.
        settings: of the searches.
        campaigns: how samples are measured, and the training set that anchors come from.
    """
    plans = _plans(models, tasks, params, settings)
    ranks = rank_compute_samples(plans)
    compute_costs, compute_drift = campaigns.compute(ranks.samples, params.compute_anchors)
    compute_ms = measured_compute_ms(ranks, compute_costs)
    gradients = backward_comm_samples(plans)
    backward_ms = measured_comm_ms(plans, gradients, campaigns.measure_comm(gradients.samples), "backward")
    outputs = forward_comm_samples(plans, compute_ms, backward_ms)
    comm_costs, comm_drift = campaigns.comm(outputs.samples, params.comm_anchors)
    forward_ms = measured_comm_ms(plans, outputs, comm_costs, "forward")
    found = training_set(campaigns.first.table_pool, ranks.samples, compute_costs, outputs.samples, comm_costs)
    measured = Measured(found, compute_drift, comm_drift)
    chosen = {name: _chosen_by(name, plans, ranks, outputs) for name in models}
    return Judged(
        _with_models(plan_costs_frame(plans, compute_ms, forward_ms, backward_ms)),
        _predictions(models, measured.as_at_first(), chosen),
        measured.drift(),
    )


def _plans(
    models: Mapping[str, CostModels], tasks: Sequence[ShardingTask], params: JudgingParams, settings: SharderSettings
) -> list[Plan]:
    """Plans of all models, task by task; their sharders are marked with the models' names."""
    plans = [
        dataclasses.replace(plan, sharder=f"{name}{_MARK}{plan.sharder}")
        for name, pair in models.items()
        for plan in solve_all(tasks, params.sharders, pair, settings, params.seed).plans
    ]
    place = {task.task_id: at for at, task in enumerate(tasks)}
    return sorted(plans, key=lambda plan: (place[plan.task.task_id], plan.sharder.partition(_MARK)[2]))


def _with_models(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Marked sharders as two columns."""
    marked = plan_costs["sharder"].str.partition(_MARK)
    return plan_costs.assign(sharder=marked[2], models=marked[0])


def _chosen_by(name: str, plans: Sequence[Plan], ranks: RankSamples, outputs: CollectiveSamples) -> set[str]:
    """Ids of the samples that plans of these models contain."""
    mine = [at for at, plan in enumerate(plans) if plan.sharder.startswith(f"{name}{_MARK}")]
    ids = {sample_id for at in mine for sample_id in (*ranks.sample_ids[at], outputs.sample_ids[at])}
    return {sample_id for sample_id in ids if sample_id is not None}


def _predictions(
    models: Mapping[str, CostModels], measured: TrainingSet, chosen: Mapping[str, set[str]]
) -> pd.DataFrame:
    frames = []
    for name, pair in models.items():
        frame = predictions(pair, measured)
        frames.append(frame.assign(models=name, chosen=np.isin(frame["sample_id"], sorted(chosen[name]))))
    return pd.concat(frames, ignore_index=True)
