"""Rounds of search → measure → add → retrain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.evaluation.refinement.campaigns import Campaigns, Measured
from neuroshard_pipeline.evaluation.refinement.candidates import candidate_plans, new_comm_samples, new_compute_samples
from neuroshard_pipeline.evaluation.refinement.params import RefineParams
from neuroshard_pipeline.evaluation.refinement.predictions import prediction_errors, predictions
from neuroshard_pipeline.evaluation.refinement.training_set import TrainingSet
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.task import ShardingTask

Json = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """Cost models with the documents of `train`.

    Attributes:
        models: both.
        metrics: as `train.metrics`.
        held_out: as `train.held_out`.
    """

    models: CostModels
    metrics: Json
    held_out: pd.DataFrame


@dataclass(frozen=True)
class Refined:
    """What rounds of refinement leave.

    Attributes:
        trained: the last models, trained on everything.
        training_set: the first samples and all new ones, whose costs are freed of drift.
        rounds: what every round measured.
        history: per round what was found, how the machine had drifted, and how well the models that the round began
            with knew the shard sets that they had chosen.
    """

    trained: Trained
    training_set: TrainingSet
    rounds: tuple[Measured, ...]
    history: tuple[Json, ...]

    def new(self, name: str) -> pd.DataFrame:
        """The rows that all rounds have added to a frame of the training set, as measured, with a column `round`."""
        frames = [getattr(measured.found, name).assign(round=at) for at, measured in enumerate(self.rounds, start=1)]
        return pd.concat(frames, ignore_index=True)


def refine_models(
    models: CostModels,
    tasks: Sequence[ShardingTask],
    params: RefineParams,
    settings: SharderSettings,
    campaigns: Campaigns,
    train: Callable[[TrainingSet], Trained],
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Refined:
    """Search with the models, measure what the best plans and runners-up contain, retrain on it, and again.

    Args:
        models: what the first round searches with.
        tasks: what plans are searched for; none of them may be used to judge the result.
        params: rounds and limits.
        settings: of the searches.
        campaigns: how samples are measured, and the training set that they are added to.
        train: a training set → cost models.
        progress: wraps the iteration over rounds.
    """
    known, found, history = campaigns.first, [], []
    for number in progress(range(1, params.rounds + 1)):
        plans = candidate_plans(tasks, models, params, settings)
        measured = _measure(plans, known, params, campaigns)
        fresh = measured.as_at_first()
        errors = prediction_errors(predictions(models, fresh))
        history.append({"round": number, **_counts(plans, fresh), "drift": measured.drift(), "errors": errors})
        found.append(measured)
        known = known.joined(fresh)
        trained = train(known)
        models = trained.models
    return Refined(trained, known, tuple(found), tuple(history))


def _measure(plans: Sequence[Plan], known: TrainingSet, params: RefineParams, campaigns: Campaigns) -> Measured:
    """Measure what the plans contain and the training set lacks."""
    return campaigns.both(
        new_compute_samples(plans, set(known.compute_samples["sample_id"]), params.max_compute_samples),
        new_comm_samples(plans, set(known.comm_samples["sample_id"]), params.max_comm_samples),
        params,
    )


def _counts(plans: Sequence[Plan], fresh: TrainingSet) -> Json:
    return {
        "plans": len(plans),
        "compute_samples": int(fresh.compute_samples["sample_id"].nunique()),
        "comm_samples": int(fresh.comm_samples["sample_id"].nunique()),
    }


def train_both(
    data: TrainingSet,
    train_compute: Callable[..., tuple[ComputeCostModel, Json, pd.DataFrame]],
    train_comm: Callable[..., tuple[CommCostModel, Json, pd.DataFrame]],
) -> Trained:
    """Train both models on a training set.

    Args:
        data: the samples and their costs.
        train_compute: samples, pool, costs, settings of the samples → model, metrics, held-out predictions.
        train_comm: samples, costs → the same.
    """
    compute, metrics, held_out = train_compute(
        data.compute_samples, data.table_pool, data.compute_costs, settings_frame=data.compute_settings
    )
    comm, comm_metrics, comm_held_out = train_comm(data.comm_samples, data.comm_costs)
    return Trained(
        CostModels(compute, comm), {**metrics, **comm_metrics}, pd.concat([held_out, comm_held_out], ignore_index=True)
    )
