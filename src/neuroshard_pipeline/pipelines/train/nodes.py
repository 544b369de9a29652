"""Nodes of the train stage."""

from __future__ import annotations

from typing import Any

import pandas as pd

from neuroshard_pipeline.cost_models import (
    CommCostModel,
    CommTrainParams,
    ComputeCostModel,
    ComputeTrainParams,
    judge_compute_model,
    train_comm_model,
    train_compute_model,
)

Json = dict[str, Any]


def train_compute(
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    costs: pd.DataFrame,
    params: ComputeTrainParams,
    hardware: Json,
    lineage: Json,
) -> tuple[ComputeCostModel, Json, pd.DataFrame]:
    """Fit the compute cost model."""
    return train_compute_model(samples, pool, costs, params, provenance("compute", hardware, lineage), settings)


def judge_compute(
    model: ComputeCostModel,
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    costs: pd.DataFrame,
    held_out: pd.DataFrame,
) -> tuple[Json, pd.DataFrame]:
    """Judge the compute cost model by groups of samples: tables, batches and table sets that it never saw."""
    return judge_compute_model(model, samples, pool, settings, costs, held_out)


def train_comm(
    samples: pd.DataFrame, costs: pd.DataFrame, params: CommTrainParams, hardware: Json, lineage: Json
) -> tuple[CommCostModel, Json, pd.DataFrame]:
    """Fit the forward and the backward communication cost model."""
    return train_comm_model(samples, costs, params, provenance("comm", hardware, lineage))


def merge_metrics(compute: Json, comm: Json, groups: Json) -> Json:
    """One document of held-out accuracy."""
    return {**compute, **comm, **groups}


def merge_held_out(compute: pd.DataFrame, comm: pd.DataFrame) -> pd.DataFrame:
    """One frame of held-out predictions."""
    return pd.concat([compute, comm], ignore_index=True)


def provenance(campaign: str, hardware: Json, lineage: Json) -> Json:
    """What a cost model remembers of its making: hardware, noise floor, and the versions of its data."""
    versions = {**lineage["inputs"], **lineage["outputs"]}
    trained_on = ["augment.table_pool", "measure.hardware"]
    trained_on += [f"augment.{campaign}_samples", f"measure.{campaign}_costs"]
    trained_on += [f"refine.{campaign}_samples", f"refine.{campaign}_costs"]
    return {
        "hardware": hardware,
        "noise_floor": hardware["noise_floor"][campaign],
        "data_versions": {name: versions[name] for name in trained_on if name in versions},
        "run_id": lineage["run_id"],
    }
