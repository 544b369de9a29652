"""Nodes of the benchmark pipeline. A job is one task for one sharder."""

from collections.abc import Iterator

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.evaluation.solving import BenchmarkJobs, solve_missing
from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.measurement.costs import Records
from neuroshard_pipeline.workers import WorkerParams, map_items


def solve(jobs: BenchmarkJobs, executor: WorkerParams, done: Records) -> Iterator[dict[str, pd.DataFrame]]:
    """Run the jobs that have no record yet; Kedro saves every record as it is yielded."""
    total = len(jobs.jobs)
    solved = sum(job.key in done for job in jobs.jobs)
    with tqdm(total=total, initial=solved, desc="solve", unit=" jobs", disable=None) as bar:
        for key, record in solve_missing(jobs, done, lambda solver, left: map_items(solver, left, executor, PRELOAD)):
            yield {key: record}
            bar.update()
