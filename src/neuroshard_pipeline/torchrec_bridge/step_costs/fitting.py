"""Fits the step cost model to measured steps of random plans.

The model's *prices* are the ms that one unit of each quantity of work adds to a part of a step (`cost_models.step`).

Shapes: P plans, W ranks, Q quantities of work (`tables.step_work`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.cost_models.metrics import Metrics
from neuroshard_pipeline.cost_models.reductions import ReductionCosts
from neuroshard_pipeline.cost_models.step import PARTS, StepCostModel, fit_prices
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.evaluation.plan_frames import shards_from_frame
from neuroshard_pipeline.search.parts import Parts, step_parts
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import predicted_cost
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.step_work import QUANTITIES, rank_work

#: Plans of one task are held out together; every task is held out once.
_FOLDS = 4
#: Number of fits. Each fit uses the slowest ranks and their waits under the prices of the fit before.
_FITS = 3
_INDEX = {name: index for index, name in enumerate(QUANTITIES)}
PricesOfParts = dict[str, dict[str, float]]
_UNPRICED: PricesOfParts = {part: dict.fromkeys(names, 0.0) for part, names in PARTS.items()}


class MeasuredSteps(NamedTuple):
    """Plans, and the result of `measure_step_costs` for them."""

    plans: tuple[Plan, ...]
    costs: pd.DataFrame

    @classmethod
    def from_frames(cls, tasks: pd.DataFrame, plans: pd.DataFrame, costs: pd.DataFrame) -> Self:
        """Read what `tasks_to_frame`, `plans_frame` and `measure_step_costs` returned in the measure stage."""
        by_name = {task.task_id: task for task in tasks_from_frame(tasks)}
        found = []
        for _, rows in plans.groupby(["task_id", "sharder"], sort=False):
            task, name = by_name[rows["task_id"].iloc[0]], str(rows["sharder"].iloc[0])
            found.append(Plan(task, *shards_from_frame(rows, task), name))
        return cls(tuple(found), costs)


@dataclass(frozen=True)
class StepData:
    """Measured steps of plans on one number of ranks, with the number of the task of every plan, (P,).

    The models predict lookups, all-to-alls and reductions; their prices of steps have no effect. For every plan, there
    are the predicted parts of its step, its global batch size (P,), the quantities of every rank (P, W, Q), the
    measured input dist (P, W), and the measured step of the slowest rank (P,).
    """

    models: CostModels
    parts: tuple[Parts, ...]
    batch_size: IntArray
    work: FloatArray
    input_dist_ms: FloatArray
    step_ms: FloatArray
    task: IntArray

    @classmethod
    def of(cls, plans: Sequence[Plan], costs: pd.DataFrame, models: CostModels) -> Self:
        """Gather the steps of `plans`."""
        of_plan = {name: rows.sort_values("rank") for name, rows in costs.groupby(["task_id", "sharder"])}
        rows = [of_plan[plan.task.task_id, plan.sharder] for plan in plans]
        return cls(
            models,
            tuple(step_parts(plan.task, plan.shards, plan.ranks, models) for plan in plans),
            np.array([plan.task.batch_size for plan in plans]),
            np.array([rank_work(plan.task, plan.shards, plan.ranks) for plan in plans]),
            np.array([own["input_dist_ms"] for own in rows]),
            np.array([own["step_ms"].iloc[0] for own in rows]),
            np.unique([plan.task.task_id for plan in plans], return_inverse=True)[1],
        )

    def take(self, plans: NDArray[np.bool_]) -> Self:
        """The steps of those plans for which the mask `plans` (P,) is True."""
        names = ("batch_size", "work", "input_dist_ms", "step_ms", "task")
        parts = tuple(each for each, taken in zip(self.parts, plans, strict=True) if taken)
        return replace(self, parts=parts, **{name: getattr(self, name)[plans] for name in names})

    @property
    def receivers(self) -> tuple[IntArray, IntArray]:
        """The plans with an input dist, and the rank of each that receives most ids.

        The other ranks wait for this rank, so their measured input dists do not show what their own ids cost.
        """
        plans = np.flatnonzero(self.work[:, 0, _INDEX["groups"]] > 0)
        return plans, self.work[plans, :, _INDEX["ids"]].argmax(axis=1)

    def rank_ms(self, prices: PricesOfParts) -> FloatArray:
        """Predicted step of every rank, (P, W)."""
        input_ms = self.work @ _column(prices["input_dist"])
        module_ms = self.work @ (_column(prices["module"]) + _column(prices["dense"]))
        steps = zip(self.parts, input_ms, module_ms, strict=True)
        parts = [replace(each, input_dist_ms=own, module_ms=module) for each, own, module in steps]
        sizes = zip(parts, self.batch_size.tolist(), strict=True)
        return np.array([predicted_cost(each, self.models, batch_size).rank_ms for each, batch_size in sizes])


def _column(prices: Mapping[str, float]) -> FloatArray:
    return np.array([prices.get(name, 0.0) for name in QUANTITIES])


def fit_step_costs(
    measured: MeasuredSteps,
    compute: ComputeCostModel,
    comm: CommCostModel,
    reductions: ReductionCosts,
    provenance: Mapping[str, Any],
) -> tuple[StepCostModel, Metrics]:
    """Fit prices to measured steps; the cost models predict lookups, all-to-alls and reductions.

    The prices of the input dist are fitted to its measured time on `StepData.receivers`; those of the module and of
    dense gradients to the step of the slowest rank without its predicted lookups, all-to-alls, reductions and input
    dist. The measured parts of a rank contain waiting for other ranks, so prices cannot be fitted to these parts.

    Returns:
        The model, and metrics by number of ranks: the relative errors of whole steps and of input dists of held-out
        tasks, and of whole steps that are predicted from lookups, all-to-alls and reductions alone.

    Raises:
        CostModelError: the steps on some number of ranks belong to a single task.
    """
    prices, metrics, errors = {}, Metrics(), []
    models = CostModels(compute, comm, StepCostModel({2: _UNPRICED}, reductions))
    for world_size in sorted({plan.task.world_size for plan in measured.plans}):
        plans = [plan for plan in measured.plans if plan.task.world_size == world_size]
        data = StepData.of(plans, measured.costs, models)
        prices[world_size] = _fit(data)
        predicted = _held_out(data)
        metrics[str(world_size)] = _metrics(data, predicted)
        errors.append(_errors(data, predicted))
    mean = {part: float(np.mean([each[part] for each in errors])) for part in errors[0]}
    return StepCostModel(prices, reductions, mean, dict(provenance)), metrics


def _fit(data: StepData) -> PricesOfParts:
    """Prices of all parts."""
    from scipy.optimize import nnls  # imported late: this takes a third of a second

    found, at = dict(_UNPRICED), data.receivers
    found["input_dist"] = fit_prices("input_dist", data.work[at], data.input_dist_ms[at])
    names = [*PARTS["module"], *PARTS["dense"]]
    index = [_INDEX[name] for name in names]
    plan, fitted = np.arange(len(data.step_ms)), np.zeros(len(names))
    for _ in range(_FITS):
        rank_ms = data.rank_ms(found)
        slowest = rank_ms.argmax(axis=1)
        work = data.work[plan, slowest][:, index]
        rest = data.step_ms - (rank_ms[plan, slowest] - work @ fitted)
        scale = np.maximum(work.max(axis=0), 1e-12)
        fitted = nnls(work / scale / data.step_ms[:, None], rest / data.step_ms)[0] / scale
        of = dict(zip(names, fitted.tolist(), strict=True))
        found |= {part: {name: of[name] for name in PARTS[part]} for part in ("module", "dense")}
    return found


@dataclass(frozen=True)
class Prediction:
    """Predicted ms of held-out plans: whole steps (P,), input dists (P, W), and module plus dense gradients (P, W)."""

    step_ms: FloatArray
    input_dist_ms: FloatArray
    module_ms: FloatArray


def _held_out(data: StepData) -> Prediction:
    """Predictions for every plan with prices that were fitted without its task."""
    if len(set(data.task.tolist())) < 2:
        remedy = "set measure.step_plans.tasks to at least 2, or to 0 for no step cost model"
        raise CostModelError(f"steps were measured for one task only, but errors need another one; {remedy}")
    shape = data.input_dist_ms.shape
    found = Prediction(np.zeros(shape[0]), np.zeros(shape), np.zeros(shape))
    for fold in range(_FOLDS):
        left_out = data.task % _FOLDS == fold
        if not left_out.any() or left_out.all():
            continue
        prices, own = _fit(data.take(~left_out)), data.take(left_out)
        found.step_ms[left_out] = own.rank_ms(prices).max(axis=1)
        found.input_dist_ms[left_out] = own.work @ _column(prices["input_dist"])
        found.module_ms[left_out] = own.work @ (_column(prices["module"]) + _column(prices["dense"]))
    return found


def _metrics(data: StepData, predicted: Prediction) -> Metrics:
    def summary(ratios: FloatArray) -> dict[str, float]:
        error, ratio = np.median(np.abs(ratios - 1)), np.median(ratios)
        return {"median_error": float(error), "median_ratio": float(ratio), "n_plans": len(data.step_ms)}

    at = data.receivers
    return {
        "step": summary(predicted.step_ms / data.step_ms),
        "input_dist": summary(predicted.input_dist_ms[at] / data.input_dist_ms[at]),
        "step_without_prices": summary(data.rank_ms(_UNPRICED).max(axis=1) / data.step_ms),
    }


def _errors(data: StepData, predicted: Prediction) -> dict[str, float]:
    """Mean relative errors; `module` is the sum of the steps' errors / the sum of predicted module and dense costs."""
    at = data.receivers
    off = np.abs(predicted.step_ms - data.step_ms)
    return {
        "step": float(np.mean(off / data.step_ms)),
        "input_dist": float(np.mean(np.abs(predicted.input_dist_ms[at] / data.input_dist_ms[at] - 1))),
        "module": float(off.sum() / max(predicted.module_ms.max(axis=1).sum(), 1e-9)),
    }
