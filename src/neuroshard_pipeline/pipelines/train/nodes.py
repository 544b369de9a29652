"""Nodes of the train stage. They import the training late, because it imports torch."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from neuroshard_pipeline.cost_models import CommCostModel, CommTrainParams, ComputeCostModel, ComputeTrainParams
from neuroshard_pipeline.cost_models.caveats import COSTS_ARE
from neuroshard_pipeline.cost_models.modelled_step import ModelledStepParams, is_modelled, step_model_of_hardware
from neuroshard_pipeline.cost_models.reduction_fitting import fit_reductions
from neuroshard_pipeline.cost_models.reductions import ReductionCosts
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.torchrec_bridge.step_costs.fitting import MeasuredSteps
from neuroshard_pipeline.torchrec_bridge.step_costs.fitting import fit_step_costs as fit_measured_steps
from neuroshard_pipeline.workers import WorkerParams

Json = dict[str, Any]

_STEP_DATA = ("measure.step_plans", "measure.step_costs", "measure.reduction_costs", "measure.hardware")


def train_compute(
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    costs: pd.DataFrame,
    params: ComputeTrainParams,
    origin: Json,
    settings: pd.DataFrame,
    executor: WorkerParams,
) -> tuple[ComputeCostModel, Json, pd.DataFrame]:
    """Fit the compute cost model; return it with its metrics and held-out predictions."""
    from neuroshard_pipeline.cost_models.compute_training import train_compute_model

    return train_compute_model(samples, pool, costs, params, origin, settings, executor)


def evaluate_by_group(model: ComputeCostModel, *frames: pd.DataFrame) -> tuple[Json, pd.DataFrame]:
    """Return metrics and predictions of the compute cost model by group of held-out samples (`accuracy_by_group`)."""
    from neuroshard_pipeline.cost_models.group_accuracy import accuracy_by_group

    return accuracy_by_group(model, *frames)


def train_comm(
    samples: pd.DataFrame, costs: pd.DataFrame, params: CommTrainParams, origin: Json, executor: WorkerParams
) -> tuple[CommCostModel, Json, pd.DataFrame]:
    """Fit the forward and backward communication cost model; return it with its metrics and held-out predictions."""
    from neuroshard_pipeline.cost_models.comm_training import train_comm_model

    return train_comm_model(samples, costs, params, origin, executor)


def fit_reduction_costs(samples: pd.DataFrame, costs: pd.DataFrame) -> tuple[Json, Json]:
    """Fit the costs of reductions; return them as JSON, and their accuracy."""
    model, metrics = fit_reductions(samples, costs)
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
    costs_are = {COSTS_ARE: {"prices": "measured", "reductions": hardware["comm_costs_are"]}}
    origin = {"hardware": hardware, **costs_are, **_run(lineage, _STEP_DATA)}
    found, metrics = fit_measured_steps(measured, compute, comm, ReductionCosts.from_json(reductions), origin)
    return [found], metrics


def choose_step_model(found: list[StepCostModel]) -> Iterator[StepCostModel]:
    """Yield the step cost model, if there is one; Kedro saves it."""
    yield from found


def merge_metrics(compute: Json, comm: Json, groups: Json) -> Json:
    """Merge the metrics of the compute and the communication cost model, and those by group, into one document."""
    return {**compute, **comm, **groups}


def merge_held_out(*held_out: pd.DataFrame) -> pd.DataFrame:
    """Merge the held-out predictions of all models into one frame."""
    return pd.concat(held_out, ignore_index=True)


def provenance(hardware: Json, lineage: Json) -> tuple[Json, Json]:
    """Hardware, noise floor, data versions and training run of the compute and of the communication cost model."""

    def of(campaign: str) -> Json:
        data = ("augment.table_pool", "measure.hardware", f"augment.{campaign}_samples", f"measure.{campaign}_costs")
        return {"hardware": hardware, "noise_floor": hardware["noise_floor"][campaign], **_run(lineage, data)}

    return of("compute"), of("comm")


def _run(lineage: Json, data: tuple[str, ...]) -> Json:
    """The run that trains a model, and the versions of the data that it trains on."""
    versions = {**lineage["inputs"], **lineage["outputs"]}
    return {"data_versions": {name: versions[name] for name in data if name in versions}, "run_id": lineage["run_id"]}
