"""Nodes of the benchmark pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.augment import PoolParams
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement, PlanRecords
from neuroshard_pipeline.evaluation.solving import (
    BenchSolutions,
    Contest,
    SeededPlan,
    bench_plan_costs,
    bench_plans_frame,
    gather,
    plans_to_measure,
    solve_missing,
)
from neuroshard_pipeline.evaluation.suite_params import (
    BenchContestParams,
    PaperSuiteParams,
    PublicSuiteParams,
    ScaleSuiteParams,
    SuiteParams,
    TightSuiteParams,
)
from neuroshard_pipeline.evaluation.suites import SuiteSettings, draw_suites
from neuroshard_pipeline.evaluation.verdicts import VerdictParams, compare_suites, task_costs
from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.pipelines.plan_measurement import Records
from neuroshard_pipeline.report import benchmark_table, render_benchmark
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.policies.policy import Policies, Policy
from neuroshard_pipeline.workers import WorkerParams, map_items

Json = dict[str, Any]
SeededPlans = tuple[SeededPlan, ...]


def draw_tasks(
    suites: SuiteParams,
    pool: PoolParams,
    paper: PaperSuiteParams,
    tight: TightSuiteParams,
    scale: ScaleSuiteParams,
    public: PublicSuiteParams,
    memory: MemoryModel,
) -> pd.DataFrame:
    """Draw or read the tasks of all suites."""
    return draw_suites(SuiteSettings(suites, pool, paper, tight, scale, public, memory))


def pair_policies(autoshard: Policy, dreamshard: Policy) -> Policies:
    """Collect the trained policies."""
    return Policies(autoshard, dreamshard)


def list_jobs(
    tasks: pd.DataFrame,
    params: BenchContestParams,
    models: CostModels,
    settings: SharderSettings,
    policies: Policies,
) -> Contest:
    """List the jobs: every task with every sharder that runs on its suite."""
    return Contest.of(tasks, params, models, settings, policies)


def solve(contest: Contest, executor: WorkerParams, done: Records) -> Iterator[dict[str, pd.DataFrame]]:
    """Run the jobs that have no record yet; Kedro saves every record as it is yielded."""
    total = len(contest.jobs)
    left = sum(job.key not in done for job in contest.jobs)
    with tqdm(total=total, initial=total - left, desc="solve", unit=" plans", disable=None) as bar:
        for key, record in solve_missing(
            contest, done, lambda solver, jobs: map_items(solver, jobs, executor, PRELOAD)
        ):
            yield {key: record}
            bar.update()


def gather_plans(contest: Contest, records: Records) -> BenchSolutions:
    """Collect all plans with their predicted costs."""
    return gather(contest, records)


def tabulate_plans(solutions: BenchSolutions) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tabulate the shards of the plans, and the duration or error of every attempt."""
    return bench_plans_frame(solutions.plans), solutions.attempts


def choose_measured(solutions: BenchSolutions, tasks: pd.DataFrame, params: BenchContestParams) -> SeededPlans:
    """Choose the plans that are measured."""
    return plans_to_measure(solutions.plans, tasks, params)


def plan_measurement(chosen: SeededPlans, campaigns: Campaigns) -> PlanMeasurement:
    """Set up the measurement of the chosen plans."""
    return PlanMeasurement(tuple(each.plan for each in chosen), campaigns)


def tabulate_costs(
    solutions: BenchSolutions,
    chosen: SeededPlans,
    measurement: PlanMeasurement,
    compute: Records,
    backward: Records,
    forward: Records,
) -> tuple[pd.DataFrame, Json]:
    """Tabulate the costs of every plan by rank, and describe the hardware of the measurement."""
    records = PlanRecords(compute, backward, forward)
    costs = bench_plan_costs(solutions.plans, chosen, measurement.costs(records).plan_costs)
    return costs, measurement.hardware(records)


def compare_sharders(
    tasks: pd.DataFrame, attempts: pd.DataFrame, plan_costs: pd.DataFrame, params: VerdictParams
) -> tuple[pd.DataFrame, Json]:
    """Compute one cost per task and sharder, and compare the sharders suite by suite."""
    costs = task_costs(tasks, attempts, plan_costs)
    return costs, compare_suites(costs, params)


def report(verdicts: Json, costs: pd.DataFrame, hardware: Json, lineage: Json) -> tuple[str, str]:
    """Write the text table and the HTML page."""
    return benchmark_table(verdicts, hardware), render_benchmark(verdicts, costs, hardware, lineage)
