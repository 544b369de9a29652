"""Nodes of the benchmark pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.augment import PoolParams
from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.evaluation.benchmark.judging import judge
from neuroshard_pipeline.evaluation.benchmark.measuring import bench_plan_costs, measured_plans
from neuroshard_pipeline.evaluation.benchmark.params import (
    BenchContestParams,
    JudgeParams,
    PaperSuiteParams,
    PublicSuiteParams,
    ScaleSuiteParams,
    SuiteParams,
    TightSuiteParams,
)
from neuroshard_pipeline.evaluation.benchmark.solving import (
    BenchSolutions,
    Contest,
    SeededPlan,
    bench_plans_frame,
    gather,
    solve_missing,
)
from neuroshard_pipeline.evaluation.benchmark.suites import SuiteSettings, draw_suites
from neuroshard_pipeline.evaluation.benchmark.task_costs import task_costs
from neuroshard_pipeline.evaluation.benchmark.wording import benchmark_table
from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.execution import ExecutorParams, map_items
from neuroshard_pipeline.report import render_benchmark
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import RivalParams, SharderSettings
from neuroshard_pipeline.sharders.policies.policy import Policies, Policy

Shards = dict[str, Callable[[], pd.DataFrame]]
Json = dict[str, Any]


def draw_tasks(
    suites: SuiteParams,
    pool: PoolParams,
    paper: PaperSuiteParams,
    tight: TightSuiteParams,
    scale: ScaleSuiteParams,
    public: PublicSuiteParams,
    memory: MemoryModel,
) -> pd.DataFrame:
    """Draw and read the tasks of all suites."""
    return draw_suites(SuiteSettings(suites, pool, paper, tight, scale, public, memory))


def state_contest(
    tasks: pd.DataFrame,
    compute_model: ComputeCostModel,
    comm_model: CommCostModel,
    autoshard: Policy,
    dreamshard: Policy,
    params: BenchContestParams,
    search: SearchParams,
    plus: PlusParams,
    memory: MemoryModel,
    rivals: RivalParams,
) -> Contest:
    """Everything that decides the plans."""
    settings = SharderSettings(search, plus, memory, rivals)
    models, policies = CostModels(compute_model, comm_model), Policies(autoshard, dreamshard)
    return Contest.of(tasks, params, models, settings, policies)


def solve(contest: Contest, executor: ExecutorParams, done: Shards) -> Iterator[dict[str, pd.DataFrame]]:
    """Solve what is missing; Kedro saves every shard as it is yielded."""
    total = len(contest.jobs)
    left = sum(job.key not in done for job in contest.jobs)
    with tqdm(total=total, initial=total - left, desc="solve", unit=" plans", disable=None) as bar:
        for key, shard in solve_missing(contest, done, lambda solver, jobs: map_items(solver, jobs, executor)):
            yield {key: shard}
            bar.update()


def gather_plans(contest: Contest, shards: Shards) -> BenchSolutions:
    """All plans with their predicted costs."""
    return gather(contest, shards)


def tabulate_plans(solutions: BenchSolutions) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The plans shard by shard, and every attempt with its time or its failure."""
    return bench_plans_frame(solutions.plans), solutions.attempts


def choose_measured(
    solutions: BenchSolutions, tasks: pd.DataFrame, params: BenchContestParams
) -> tuple[tuple[SeededPlan, ...], tuple[Plan, ...]]:
    """The plans that are measured, with and without their seeds."""
    chosen = measured_plans(solutions.plans, tasks, params)
    return chosen, tuple(each.plan for each in chosen)


def tabulate_costs(
    solutions: BenchSolutions,
    chosen: tuple[SeededPlan, ...],
    plans: tuple[Plan, ...],
    measurement: PlanMeasurement,
    compute: Shards,
    backward: Shards,
    forward: Shards,
) -> tuple[pd.DataFrame, Json]:
    """Costs of every plan rank by rank, and what they were measured on."""
    costs, _ = measurement.costs(plans, compute, backward, forward)
    return bench_plan_costs(solutions.plans, chosen, costs), measurement.hardware(plans, compute, backward, forward)


def judge_sharders(
    tasks: pd.DataFrame, attempts: pd.DataFrame, plan_costs: pd.DataFrame, params: JudgeParams
) -> tuple[pd.DataFrame, Json]:
    """One cost per task and sharder, and the verdicts."""
    costs = task_costs(tasks, attempts, plan_costs)
    return costs, judge(costs, params)


def report(judgement: Json, costs: pd.DataFrame, hardware: Json, lineage: Json) -> tuple[str, str]:
    """The table that a person looks at, and the page."""
    return benchmark_table(judgement, hardware), render_benchmark(judgement, costs, hardware, lineage)
