"""Nodes of the refine pipeline."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from tqdm import tqdm

from neuroshard_pipeline.augment import ShardingTaskParams
from neuroshard_pipeline.cost_models import (
    CommCostModel,
    CommTrainParams,
    ComputeCostModel,
    ComputeTrainParams,
    CostModels,
    train_comm_model,
    train_compute_model,
)
from neuroshard_pipeline.evaluation.refinement import (
    AFTER,
    BEFORE,
    Campaigns,
    Judged,
    JudgingParams,
    Refined,
    RefineParams,
    TrainingSet,
    judge_plans,
    refine_models,
    require_measuring,
    summarise_refinement,
    train_both,
)
from neuroshard_pipeline.measurement import (
    CommMeasureParams,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
    measure_comm,
    measure_compute,
)
from neuroshard_pipeline.pipelines.train.nodes import provenance
from neuroshard_pipeline.report import figures, refinement_table
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables import tasks_from_frame

Json = dict[str, Any]


def gather(
    pool: pd.DataFrame,
    compute_samples: pd.DataFrame,
    compute_settings: pd.DataFrame,
    compute_costs: pd.DataFrame,
    comm_samples: pd.DataFrame,
    comm_costs: pd.DataFrame,
) -> TrainingSet:
    """What the cost models were trained on."""
    return TrainingSet(pool, compute_samples, compute_settings, compute_costs, comm_samples, comm_costs)


def draw_tasks(
    pool: pd.DataFrame, like: ShardingTaskParams, rounds: RefineParams, judging: JudgingParams
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tasks whose plans are learnt from, and other tasks that the result is judged on."""
    return rounds.draw(pool, like, "refine-"), judging.draw(pool, like, "judge-")


def pair_models(compute: ComputeCostModel, comm: CommCostModel) -> CostModels:
    """The newest cost models."""
    return CostModels(compute, comm)


def set_up_search(search: SearchParams, plus: PlusParams, memory: MemoryModel) -> SharderSettings:
    """How plans are searched."""
    return SharderSettings(search, plus, memory)


def set_up_campaigns(
    first: TrainingSet,
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    seed: int,
    recording: RecordingParams,
    topology: TopologyParams,
) -> Campaigns:
    """How samples are measured."""
    require_measuring(compute.backend)
    return Campaigns(
        first,
        partial(measure_compute, params=compute, seed=seed, recording=recording),
        partial(measure_comm, params=comm, seed=seed, topology=topology),
    )


def refine(
    models: CostModels,
    tasks: pd.DataFrame,
    params: RefineParams,
    settings: SharderSettings,
    campaigns: Campaigns,
    compute: ComputeTrainParams,
    comm: CommTrainParams,
    hardware: Json,
    lineage: Json,
) -> Refined:
    """Search → measure → add → retrain, over and over."""
    origins = {kind: provenance(kind, hardware, lineage) for kind in ("compute", "comm")}
    return refine_models(
        models,
        tasks_from_frame(tasks),
        params,
        settings,
        campaigns,
        partial(
            train_both,
            train_compute=partial(train_compute_model, params=compute, provenance=origins["compute"]),
            train_comm=partial(train_comm_model, params=comm, provenance=origins["comm"]),
        ),
        lambda each: tqdm(each, desc="refine", unit=" rounds", disable=None),
    )


def unpack(refined: Refined) -> Json:
    """The refined models and their documents, and what was measured for them, by the names of their datasets."""
    trained = refined.trained
    found = ("compute_samples", "compute_costs", "comm_samples", "comm_costs")
    return {
        "compute_cost_model": trained.models.compute,
        "comm_cost_model": trained.models.comm,
        "metrics": trained.metrics,
        "held_out": trained.held_out,
        "compute_sample_settings": refined.new("compute_settings"),
        **{name: refined.new(name) for name in found},
    }


def judge(
    models: CostModels,
    refined: Refined,
    tasks: pd.DataFrame,
    params: JudgingParams,
    settings: SharderSettings,
    campaigns: Campaigns,
) -> Judged:
    """Plans of the models before and after, measured side by side."""
    pairs = {BEFORE: models, AFTER: refined.trained.models}
    return judge_plans(pairs, tasks_from_frame(tasks), params, settings, campaigns)


def summarise(
    refined: Refined, judged: Judged, lineage: Json
) -> tuple[pd.DataFrame, pd.DataFrame, Json, str, go.Figure]:
    """Plan costs, predictions, and what they come to: document, table and figure."""
    summary = summarise_refinement(refined.history, judged, lineage["run_id"])
    figure = figures.refinement(summary)
    return judged.plan_costs, judged.predictions, summary, refinement_table(summary), figure
