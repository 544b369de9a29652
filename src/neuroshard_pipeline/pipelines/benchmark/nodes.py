"""Nodes of the benchmark pipeline. A job is one task for one sharder; the chosen plans are those that are measured."""

from collections.abc import Iterator, Mapping

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.evaluation.campaigns import Campaigns, Records
from neuroshard_pipeline.evaluation.measure_plans import NewRecord, PlanMeasurement
from neuroshard_pipeline.evaluation.solving import BenchmarkJobs, SeededPlan, bench_plan_costs, solve_missing
from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.workers import WorkerParams, map_items

SeededPlans = tuple[SeededPlan, ...]


def solve(jobs: BenchmarkJobs, executor: WorkerParams, done: Records) -> Iterator[NewRecord]:
    """Run the jobs that have no record yet; Kedro saves every record as it is yielded."""
    total = len(jobs.jobs)
    solved = sum(job.key in done for job in jobs.jobs)
    with tqdm(total=total, initial=solved, desc="solve", unit=" jobs", disable=None) as bar:
        for key, record in solve_missing(jobs, done, lambda solver, left: map_items(solver, left, executor, PRELOAD)):
            yield {key: record}
            bar.update()


def set_up_measurement(chosen: SeededPlans, campaigns: Campaigns) -> PlanMeasurement:
    """Set up the measurement of the chosen plans."""
    return PlanMeasurement(tuple(each.plan for each in chosen), campaigns)


def tabulate_costs(
    plans: SeededPlans, chosen: SeededPlans, measurement: PlanMeasurement, *records: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Tabulate the costs of all plans by rank; the measured costs come from the records of the chosen plans."""
    measured_costs, _ = measurement.costs(*records)
    return bench_plan_costs(plans, chosen, measured_costs)
