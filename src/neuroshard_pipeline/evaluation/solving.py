"""Solves the tasks of a benchmark with the sharders of their suites; a job is one task for one sharder.

The result of each job is stored as a record, so that a stopped run can resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

import neuroshard_pipeline
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.digests import content, digest
from neuroshard_pipeline.evaluation.plan_frames import shards_from_frame, task_from_frame
from neuroshard_pipeline.evaluation.suite_params import BenchmarkSharderParams
from neuroshard_pipeline.evaluation.suites import suite_of_tasks
from neuroshard_pipeline.measurement.costs import Records, loaded
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.plan_data import FRAME_COLUMNS, OPTIONAL_COLUMNS
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.policies.policy import NO_POLICIES, Policies
from neuroshard_pipeline.sharders.registry import LEARNED, TORCHREC, on_hosts_of, solve_all
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.workers import Outcome

_ATTEMPT_COLUMNS = ["task_id", "sharder", "seconds", "error"]
#: Columns of every record; some plans add `OPTIONAL_COLUMNS`. A record has one row per shard of the plan, or one row
#: with an error if there is no plan.
SOLVE_COLUMNS = [*_ATTEMPT_COLUMNS, *FRAME_COLUMNS[2:]]


@dataclass(frozen=True)
class Job:
    """One task that one sharder solves.

    Attributes:
        key: key of the record; it contains a hash of everything that determines the plan.
        task: the task to solve.
        sharder: name of the sharder.
    """

    key: str
    task: ShardingTask
    sharder: str


@dataclass(frozen=True)
class BenchmarkJobs:
    """All jobs, and everything else that determines their plans.

    Attributes:
        jobs: all jobs, ordered by task.
        models: cost models.
        settings: settings of the sharders.
        policies: trained policies of the sharders that need one.
        seed: seed of the sharders that draw random numbers.
    """

    jobs: tuple[Job, ...]
    models: CostModels
    settings: SharderSettings
    policies: Policies
    seed: int

    @classmethod
    def of(
        cls,
        tasks: pd.DataFrame,
        params: BenchmarkSharderParams,
        models: CostModels,
        settings: SharderSettings,
        policies: Policies = NO_POLICIES,
    ) -> BenchmarkJobs:
        """One job for every task of `benchmark.tasks` and every sharder that runs on its suite."""
        common = (_source_digest(), *map(content, (models.compute, models.comm, models.step, settings)), params.seed)
        suites = suite_of_tasks(tasks)["suite"].to_dict()
        learned = {name: content(policies.of(name)) for name in params.sharders if name in LEARNED}
        jobs = []
        for task in (on_hosts_of(models, task) for task in tasks_from_frame(tasks)):
            task_digest = digest(*common, content(task))
            for sharder in params.sharders_of(suites[task.task_id]):
                mark = digest(task_digest, sharder, learned.get(sharder))
                jobs.append(Job(f"{task.task_id}/{sharder}-{mark}", task, sharder))
        return cls(tuple(jobs), models, settings, policies, params.seed)


def solve_missing(
    jobs: BenchmarkJobs,
    done: Records,
    run: Callable[[Callable[[Job], pd.DataFrame], Sequence[Job]], Iterable[Outcome[pd.DataFrame]]],
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Run the jobs that have no record of an earlier run yet; `run` works like `workers.map_items`.

    Yields:
        (key, record). The caller stores each record before it asks for the next.
    """
    missing = [job for job in jobs.jobs if job.key not in done]
    needs_torchrec = any(job.sharder in TORCHREC for job in missing)
    for outcome in run(Solver(jobs.models, jobs.settings, jobs.policies, jobs.seed, needs_torchrec), missing):
        job = missing[outcome.index]
        aborted = f"{job.task.task_id}: {job.sharder} was aborted: {outcome.error}"
        yield job.key, _failed(job, math.nan, aborted) if outcome.value is None else outcome.value


@dataclass(frozen=True)
class Solver:
    """Solves jobs in a worker process; calling it with a job returns the record (`SOLVE_COLUMNS`).

    If any job needs TorchRec, a worker imports it before its first job: the import does not count as solving time.
    """

    models: CostModels
    settings: SharderSettings
    policies: Policies
    seed: int
    needs_torchrec: bool

    def __call__(self, job: Job) -> pd.DataFrame:
        """The record of `job`."""
        if self.needs_torchrec:
            require_torchrec()
        solved = solve_all([job.task], [job.sharder], self.models, self.settings, self.seed, policies=self.policies)
        seconds, error = solved.attempts.iloc[0][["seconds", "error"]]
        if error is not None:
            return _failed(job, seconds, error)
        frame = solved.plans[0].to_frame().assign(seconds=seconds, error=None)
        return frame[[*SOLVE_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in frame)]]


def _failed(job: Job, seconds: float, error: str) -> pd.DataFrame:
    head = (job.task.task_id, job.sharder, seconds, error)
    return pd.DataFrame([(*head, None, -1, -1, -1, None, -1, -1)], columns=SOLVE_COLUMNS)


def gather(jobs: BenchmarkJobs, records: Records) -> tuple[tuple[Plan, ...], pd.DataFrame]:
    """Read the results of all jobs from their records, in the order of the jobs.

    Returns:
        Every plan found, with its predicted cost; and `benchmark.attempts` with the columns `task_id, sharder, seconds,
        error`, where `error` is null if a plan was found.
    """
    plans, attempts = [], []
    for job in jobs.jobs:
        rows = loaded(records[job.key])
        attempts.append(rows[_ATTEMPT_COLUMNS].iloc[:1])
        if rows["table"].notna().all():
            task = task_from_frame(rows, job.task)
            plan = Plan(task, *shards_from_frame(rows, task), job.sharder, memory=jobs.settings.memory)
            plans.append(priced(plan, jobs.models))
    frame = pd.concat(attempts, ignore_index=True)
    return tuple(plans), frame.assign(error=frame["error"].astype(object))


def plans_to_measure(plans: Sequence[Plan], tasks: pd.DataFrame) -> tuple[Plan, ...]:
    """The plans whose task is marked `is_measured`."""
    is_measured = suite_of_tasks(tasks)["is_measured"].to_dict()
    return tuple(plan for plan in plans if is_measured[plan.task.task_id])


@cache
def _source_digest() -> str:
    """A hash of the packages that compute plans. Plans of older code are not reused."""
    root = Path(neuroshard_pipeline.__file__).parent
    rooms = ("tables", "cost_models", "torchrec_plan", "search", "sharders")
    sources = [path for room in rooms for path in sorted((root / room).rglob("*.py"))]
    return digest(*(path.read_text(encoding="utf-8") for path in sources))
