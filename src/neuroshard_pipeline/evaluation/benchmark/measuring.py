"""Which plans of a benchmark are measured, and the costs of all of them in one frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.benchmark.params import BenchContestParams
from neuroshard_pipeline.evaluation.benchmark.solving import SeededPlan
from neuroshard_pipeline.evaluation.benchmark.suites import suite_of_tasks
from neuroshard_pipeline.evaluation.plan_samples import plan_costs_frame


def measured_plans(
    plans: Sequence[SeededPlan], tasks: pd.DataFrame, params: BenchContestParams
) -> tuple[SeededPlan, ...]:
    """The plans that are measured: of tasks that can be, with the first `measured_seeds` seeds."""
    is_measured = suite_of_tasks(tasks)["is_measured"].to_dict()
    last = params.seed + params.measured_seeds
    return tuple(each for each in plans if is_measured[each.plan.task.task_id] and each.seed < last)


def bench_plan_costs(
    plans: Sequence[SeededPlan], measured: Sequence[SeededPlan], measured_costs: pd.DataFrame
) -> pd.DataFrame:
    """`benchmark.plan_costs`: `search.plan_costs` with a seed; the measured plans first, then those only predicted."""
    known = {_key(each) for each in measured}
    others = [each for each in plans if _key(each) not in known]
    frames = [_with_seeds(measured_costs, measured), _with_seeds(plan_costs_frame([e.plan for e in others]), others)]
    return pd.concat([frame for frame in frames if len(frame)], ignore_index=True)


def _key(each: SeededPlan) -> tuple[str, str, int]:
    return each.plan.task.task_id, each.plan.sharder, each.seed


def _with_seeds(plan_costs: pd.DataFrame, plans: Sequence[SeededPlan]) -> pd.DataFrame:
    seeds = np.repeat([each.seed for each in plans], [each.plan.task.world_size for each in plans]).astype(np.int64)
    place = list(plan_costs.columns).index("sharder") + 1
    return plan_costs[plan_costs.columns[:place]].assign(seed=seeds).join(plan_costs[plan_costs.columns[place:]])
