"""Nodes of the train stage."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from neuroshard_pipeline import cost_models
from neuroshard_pipeline.cost_models import CommCostModel, CommTrainParams, ComputeCostModel, ComputeTrainParams
from neuroshard_pipeline.cost_models.caveats import COSTS_ARE
from neuroshard_pipeline.cost_models.modelled_step import ModelledStepParams, is_modelled, step_model_of_hardware
from neuroshard_pipeline.cost_models.reductions import ReductionCosts
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.torchrec_bridge.step_costs.fitting import MeasuredSteps
from neuroshard_pipeline.torchrec_bridge.step_costs.fitting import fit_step_costs as fit_measured_steps
from neuroshard_pipeline.workers import WorkerParams

Json = dict[str, Any]

_STEP_DATA = ("measure.step_plans", "measure.step_costs", "measure.reduction_costs", "measure.hardware")


def train_compute(
    data: MeasuredSamples,
    params: ComputeTrainParams,
    executor: WorkerParams,
    hardware: Json,
    lineage: Json,
) -> tuple[ComputeCostModel, Json, pd.DataFrame]:
    """Fit the compute cost model; return it with its metrics and held-out predictions."""
    return cost_models.train_compute_model(
        data.compute_samples,
        data.table_pool,
        data.compute_costs,
        params,
        provenance("compute", hardware, lineage),
        data.compute_settings,
        executor,
    )


def evaluate_by_group(
    model: ComputeCostModel, data: MeasuredSamples, held_out: pd.DataFrame
) -> tuple[Json, pd.DataFrame]:
    """Return metrics and predictions of the compute cost model by group of held-out samples (`accuracy_by_group`)."""
    return cost_models.accuracy_by_group(
        model, data.compute_samples, data.table_pool, data.compute_settings, data.compute_costs, held_out
    )


def train_comm(
    data: MeasuredSamples, params: CommTrainParams, hardware: Json, lineage: Json
) -> tuple[CommCostModel, Json, pd.DataFrame]:
    """Fit the forward and backward communication cost model; return it with its metrics and held-out predictions."""
    origin = provenance("comm", hardware, lineage)
    return cost_models.train_comm_model(data.comm_samples, data.comm_costs, params, origin)


def fit_reduction_costs(samples: pd.DataFrame, costs: pd.DataFrame) -> tuple[Json, Json]:
    """Fit the costs of reductions; return them as JSON, and their accuracy."""
    model, metrics = cost_models.fit_reductions(samples, costs)
    return model.to_json(), metrics


def fit_step_costs(
    measured: MeasuredSteps,
    compute: ComputeCostModel,
    comm: CommCostModel,
    reductions: Json,
    modelled: ModelledStepParams,
    hardware: Json,
    lineage: Json,
) -> tuple[list[StepCostModel], Json]:
    """Return a list with the step cost model (measured or modelled), empty if there is none, and its accuracy."""
    if is_modelled(hardware):
        model = step_model_of_hardware(hardware, modelled)
        return [model], dict(model.errors)
    if not measured.plans:
        return [], {}
    versions = {**lineage["inputs"], **lineage["outputs"]}
    origin = {
        "hardware": hardware,
        COSTS_ARE: {"prices": "measured", "reductions": hardware["comm_costs_are"]},
        "data_versions": {name: versions[name] for name in _STEP_DATA if name in versions},
        "run_id": lineage["run_id"],
    }
    found, metrics = fit_measured_steps(measured, compute, comm, ReductionCosts.from_json(reductions), origin)
    return [found], metrics


def choose_step_model(found: list[StepCostModel]) -> Iterator[StepCostModel]:
    """Yield the step cost model, if there is one; Kedro saves it."""
    yield from found


def merge_metrics(compute: Json, comm: Json, groups: Json) -> Json:
    """Merge the metrics of the compute and the communication cost model, and those by group, into one document."""
    return {**compute, **comm, **groups}


def merge_held_out(compute: pd.DataFrame, comm: pd.DataFrame) -> pd.DataFrame:
    """Merge the held-out predictions of both models into one frame."""
    return pd.concat([compute, comm], ignore_index=True)


def provenance(campaign: str, hardware: Json, lineage: Json) -> Json:
    """Return hardware, noise floor, data versions and training run of a model; `campaign` is `compute` or `comm`."""
    versions = {**lineage["inputs"], **lineage["outputs"]}
    trained_on = ["augment.table_pool", "measure.hardware", f"augment.{campaign}_samples", f"measure.{campaign}_costs"]
    used = {name: versions[name] for name in trained_on if name in versions}
    return {
        "hardware": hardware,
        "noise_floor": hardware["noise_floor"][campaign],
        "data_versions": used,
        "run_id": lineage["run_id"],
    }
