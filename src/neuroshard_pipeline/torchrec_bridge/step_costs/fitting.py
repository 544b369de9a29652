"""Fits the step cost model to measured steps of random plans.

The model's *prices* are the ms that one unit of each quantity of work adds to a part of a step (`cost_models.step`).

Shapes: P plans, W ranks, Q quantities of work (`tables.step_work`).
"""

from collections import defaultdict
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
from neuroshard_pipeline.torchrec_bridge.step_costs.measuring import COLUMNS

#: Plans of one task are held out together; every task is held out once.
_FOLDS = 4
#: Number of fits. Each fit uses the slowest ranks and their waits under the prices of the fit before.
_FITS = 3
#: Errors of plans on other numbers of ranks count this much; they tell quantities apart that few plans have.
_OTHERS = 0.03
#: Shrinkage of prices of input dists that contain waiting (`step.fit_prices`): delays of gloo double some input dists.
#: In six campaigns of `make run`, a million bucketized ids cost 0.2 to 106 ms without it, and steps of TorchRec's plans
#: were predicted as 0.97 to 1.57 of the measured ones; now 0 to 14 ms, and 0.96 to 1.02.
_SHRINKAGE = 0.05
_INDEX = {name: index for index, name in enumerate(QUANTITIES)}
PricesOfParts = dict[str, dict[str, float]]
#: Work (N, Q) of N ranks, a cost of each (N,), and what the errors of this cost are relative to (N,).
Labels = tuple[FloatArray, FloatArray, FloatArray]
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
    measured input dist (P, W), and the measured step of the slowest rank (P,). On virtual ranks, the input dist has no
    waiting for other ranks, and `computed_ms` (P, W, 2) is the CPU time of the input dist and of the rest of the step;
    else it is NaN.
    """

    models: CostModels
    parts: tuple[Parts, ...]
    batch_size: IntArray
    work: FloatArray
    input_dist_ms: FloatArray
    computed_ms: FloatArray
    step_ms: FloatArray
    task: IntArray

    @classmethod
    def of(cls, plans: Sequence[Plan], costs: pd.DataFrame, models: CostModels) -> Self:
        """Gather the steps of `plans`."""
        costs = costs.reindex(columns=list(COLUMNS)).sort_values("rank")  # older ones lack the last columns
        of_plan = dict(iter(costs.groupby(["task_id", "sharder"])))
        rows = [of_plan[plan.task.task_id, plan.sharder] for plan in plans]
        return cls(
            models,
            tuple(step_parts(plan.task, plan.shards, plan.ranks, models) for plan in plans),
            np.array([plan.task.batch_size for plan in plans]),
            np.array([rank_work(plan.task, plan.shards, plan.ranks) for plan in plans]),
            np.array([own["input_dist_ms"] - own["input_dist_waiting_ms"].fillna(0.0) for own in rows]),
            np.array([own[["input_dist_computed_ms", "computed_ms"]].to_numpy() @ [[1, -1], [0, 1]] for own in rows]),
            np.array([own["step_ms"].iloc[0] for own in rows]),
            np.unique([plan.task.task_id for plan in plans], return_inverse=True)[1],
        )

    def take(self, plans: NDArray[np.bool_]) -> Self:
        """The steps of those plans for which the mask `plans` (P,) is True."""
        names = ("batch_size", "work", "input_dist_ms", "computed_ms", "step_ms", "task")
        parts = tuple(each for each, taken in zip(self.parts, plans, strict=True) if taken)
        return replace(self, parts=parts, **{name: getattr(self, name)[plans] for name in names})

    @property
    def is_virtual(self) -> bool:
        """Whether waiting for other ranks is known, so that every rank shows what its own work costs."""
        return not np.isnan(self.computed_ms).any()

    def all_ranks(self, cost_ms: FloatArray) -> Labels:
        """Work (P * W, Q) of all ranks, their costs (P * W,) and the steps of their plans (P * W,)."""
        return self.work.reshape(-1, len(QUANTITIES)), cost_ms.ravel(), np.repeat(self.step_ms, self.work.shape[1])

    def of_busiest(self, cost_ms: FloatArray) -> Labels:
        """Work (N, Q) of the rank of each plan that receives most ids, its cost (N,) and its input dist (N,)."""
        plans = np.flatnonzero(self.work[:, 0, _INDEX["groups"]] > 0)
        ranks = self.work[plans, :, _INDEX["ids"]].argmax(axis=1)
        return self.work[plans, ranks], cost_ms[plans, ranks], self.input_dist_ms[plans, ranks]

    @property
    def input_dists(self) -> list[Labels]:
        """Parts of the input dist: its CPU time on all ranks, and its transfers.

        The other ranks wait for the one that receives most ids, so transfers, and all of the input dist of ranks that
        are not virtual, count on this rank.
        """
        if not self.is_virtual:
            return [self.of_busiest(self.input_dist_ms)]
        computed_ms = self.computed_ms[..., 0]
        return [self.all_ranks(computed_ms), self.of_busiest(self.input_dist_ms - computed_ms)]

    def rests(self, prices: PricesOfParts) -> Labels:
        """Work (N, Q), cost of `module` and `dense` (N,) and steps (N,), of all ranks or of the slowest per plan."""
        if self.is_virtual:
            lookups_ms = np.array([each.compute_ms.sum(axis=1) for each in self.parts])
            return self.all_ranks(self.computed_ms[..., 1] - lookups_ms)
        rank_ms = self.rank_ms(prices)
        plan, slowest = np.arange(len(rank_ms)), rank_ms.argmax(axis=1)
        work = self.work[plan, slowest]
        priced_ms = work @ _column(prices["module"] | prices["dense"])
        return work, self.step_ms - (rank_ms[plan, slowest] - priced_ms), self.step_ms

    def rank_ms(self, prices: PricesOfParts) -> FloatArray:
        """Predicted step of every rank, (P, W)."""
        input_ms = self.work @ _column(prices["input_dist"])
        module_ms = self.work @ _column(prices["module"] | prices["dense"])
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

    The prices of the input dist are fitted to `StepData.input_dists`. Those of the module and of dense gradients are
    fitted to the CPU time of every virtual rank without its input dist and predicted lookups. The measured parts of
    other ranks contain waiting, so only the step of the slowest rank of a plan counts there, without its predicted
    lookups, all-to-alls, reductions and input dist.

    Returns:
        The model, and metrics by number of ranks: the relative errors of whole steps and input dists of held-out tasks.

    Raises:
        CostModelError: the steps on some number of ranks belong to a single task.
    """
    prices, metrics, errors = {}, Metrics(), []
    models = CostModels(compute, comm, StepCostModel({2: _UNPRICED}, reductions))
    sizes = sorted({plan.task.world_size for plan in measured.plans})
    plans = ([plan for plan in measured.plans if plan.task.world_size == world_size] for world_size in sizes)
    of_sizes = {size: StepData.of(own, measured.costs, models) for size, own in zip(sizes, plans, strict=True)}
    for world_size, data in of_sizes.items():
        others = [each for each in of_sizes.values() if each is not data]
        prices[world_size], held_out = _fit(data, others), _held_out(data, others)
        metrics[str(world_size)] = _metrics(held_out)
        errors.append(_errors(held_out))
    mean = {part: float(np.mean([each[part] for each in errors])) for part in errors[0]}
    return StepCostModel(prices, reductions, mean, dict(provenance)), metrics


def _fit(data: StepData, others: Sequence[StepData]) -> PricesOfParts:
    """Prices of all parts for the number of ranks of `data`; `others` have other numbers of ranks (`_OTHERS`)."""
    all_data = [(data, 1.0), *((each, _OTHERS) for each in others)]

    def fitted(parts: Sequence[str], rows: Sequence[Labels], shrinkage: float = 0.0) -> PricesOfParts:
        weighted = [(work, ms, of_ms / weight) for (work, ms, of_ms), (_, weight) in zip(rows, all_data, strict=True)]
        work, ms, of_ms = (np.concatenate(column) for column in zip(*weighted, strict=True))
        prices = fit_prices([name for part in parts for name in PARTS[part]], work, ms, of_ms, shrinkage)
        return {part: {name: prices[name] for name in PARTS[part]} for part in parts}

    inputs = zip(*(each.input_dists for each, _ in all_data), strict=True)
    of_inputs = [fitted(["input_dist"], rows, _SHRINKAGE * (not data.is_virtual))["input_dist"] for rows in inputs]
    found = _UNPRICED | {"input_dist": {name: sum(of[name] for of in of_inputs) for name in PARTS["input_dist"]}}
    for _ in range(_FITS):
        found |= fitted(["module", "dense"], [each.rests(found) for each, _ in all_data])
    return found


def _held_out(data: StepData, others: Sequence[StepData]) -> dict[str, FloatArray]:
    """Predictions with prices that were fitted without the plan's task.

    These are steps (P,) and input dists of the busiest ranks (N,) divided by measured ones; and `module_ms` (P,), the
    module and the dense gradients, means over ranks, beside the measured `step_ms` (P,).
    """
    if len(set(data.task.tolist())) < 2:
        remedy = "set measure.step_plans.tasks to at least 2, or to 0 for no step cost model"
        raise CostModelError(f"steps were measured for one task only, but errors need another one; {remedy}")
    found: dict[str, list[FloatArray]] = defaultdict(list)
    for fold in range(_FOLDS):
        left_out = data.task % _FOLDS == fold
        if not left_out.any() or left_out.all():
            continue
        prices, own = _fit(data.take(~left_out), others), data.take(left_out)
        work, measured_ms, _ = own.of_busiest(own.input_dist_ms)
        found["input_dist"].append(work @ _column(prices["input_dist"]) / measured_ms)
        found["step"].append(own.rank_ms(prices).max(axis=1) / own.step_ms)
        found["module_ms"].append((own.work @ _column(prices["module"] | prices["dense"])).mean(axis=1))
        found["step_ms"].append(own.step_ms)
    return {name: np.concatenate(of_folds) for name, of_folds in found.items()}


def _metrics(held_out: Mapping[str, FloatArray]) -> Metrics:
    count = {"n_plans": len(held_out["step"])}
    found = ((name, held_out[name]) for name in ("step", "input_dist"))
    return {
        name: {"median_error": float(np.median(np.abs(of - 1))), "median_ratio": float(np.median(of)), **count}
        for name, of in found
    }


def _errors(held_out: Mapping[str, FloatArray]) -> dict[str, float]:
    """Mean relative errors; `module` is the sum of the steps' errors / the sum of predicted module and dense costs."""
    off = {name: np.abs(held_out[name] - 1) for name in ("step", "input_dist")}
    off_ms = float(off["step"] @ held_out["step_ms"])
    module = off_ms / max(float(held_out["module_ms"].sum()), 1e-9)
    return {name: float(each.mean()) for name, each in off.items()} | {"module": module}
