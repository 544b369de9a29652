"""Solves the tasks of a benchmark with the sharders of their suites; a job is one task for one sharder.

The result of each job is stored as a record, so that a stopped run can resume. An attempt is one run of a sharder on a
task with one seed; a job has one attempt per seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

import neuroshard_pipeline
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.digests import content, digest
from neuroshard_pipeline.evaluation.plan_frames import shards_from_frame, task_from_frame
from neuroshard_pipeline.evaluation.suite_params import BenchmarkSharderParams
from neuroshard_pipeline.evaluation.suites import suite_of_tasks
from neuroshard_pipeline.evaluation.totals import plan_costs_frame
from neuroshard_pipeline.measurement.costs import Records
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

_ATTEMPT_COLUMNS = ["task_id", "sharder", "seed", "seconds", "error"]
#: Columns of every record; some plans add `OPTIONAL_COLUMNS`. A record has one row per shard of a plan. An attempt
#: without a plan is one row with an error.
SOLVE_COLUMNS = [*_ATTEMPT_COLUMNS, *FRAME_COLUMNS[2:]]


@dataclass(frozen=True)
class Job:
    """One task that one sharder solves.

    Attributes:
        key: key of the record; it contains a hash of everything that determines the plans.
        task: the task to solve.
        sharder: name of the sharder.
        seeds: the sharder solves the task once with each seed.
    """

    key: str
    task: ShardingTask
    sharder: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class SeededPlan:
    """A plan, and the seed that it was made with."""

    plan: Plan
    seed: int


@dataclass(frozen=True)
class BenchmarkJobs:
    """All jobs, and everything else that determines their plans.

    Attributes:
        jobs: all jobs, ordered by task.
        models: cost models.
        settings: settings of the sharders.
        policies: trained policies of the sharders that need one.
    """

    jobs: tuple[Job, ...]
    models: CostModels
    settings: SharderSettings
    policies: Policies

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
        common = (_source_digest(), *map(content, (models.compute, models.comm, models.step, settings)))
        suites = suite_of_tasks(tasks)["suite"].to_dict()
        learned = {name: content(policies.of(name)) for name in params.sharders if name in LEARNED}
        jobs = []
        for task in (on_hosts_of(models, task) for task in tasks_from_frame(tasks)):
            task_digest = digest(*common, content(task))
            suite = suites[task.task_id]
            for sharder in params.sharders_of(suite):
                seeds = params.seeds_of(sharder, suite)
                mark = digest(task_digest, sharder, learned.get(sharder), seeds)
                jobs.append(Job(f"{task.task_id}/{sharder}-{mark}", task, sharder, seeds))
        return cls(tuple(jobs), models, settings, policies)


def solve_missing(
    jobs: BenchmarkJobs,
    done: Records,
    run: Callable[[Callable[[Job], pd.DataFrame], Sequence[Job]], Iterable[Outcome[pd.DataFrame]]],
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Run the jobs that have no record yet.

    Args:
        jobs: all jobs.
        done: the records of earlier runs.
        run: applies a function to items and yields each outcome as soon as it is known, as `workers.map_items` does.

    Yields:
        (key, record). The caller stores each record before it asks for the next.
    """
    missing = [job for job in jobs.jobs if job.key not in done]
    needs_torchrec = any(job.sharder in TORCHREC for job in missing)
    for outcome in run(Solver(jobs.models, jobs.settings, jobs.policies, needs_torchrec), missing):
        job = missing[outcome.index]
        yield job.key, _aborted(job, outcome.error) if outcome.value is None else outcome.value


@dataclass(frozen=True)
class Solver:
    """Solves jobs in a worker process; calling it with a job returns the record.

    If any job needs TorchRec, a worker imports it before its first job, so that the import does not count as solving
    time.
    """

    models: CostModels
    settings: SharderSettings
    policies: Policies
    needs_torchrec: bool

    def __call__(self, job: Job) -> pd.DataFrame:
        """The record of `job`: all attempts and their plans (`SOLVE_COLUMNS`)."""
        if self.needs_torchrec:
            require_torchrec()
        return pd.concat([self._attempt(job, seed) for seed in job.seeds], ignore_index=True)

    def _attempt(self, job: Job, seed: int) -> pd.DataFrame:
        solved = solve_all([job.task], [job.sharder], self.models, self.settings, seed, policies=self.policies)
        seconds, error = solved.attempts.iloc[0][["seconds", "error"]]
        if error is not None:
            return _failed(job, seed, seconds, error)
        return _ordered(solved.plans[0].to_frame().assign(seed=seed, seconds=seconds, error=None), SOLVE_COLUMNS)


def _aborted(job: Job, error: str | None) -> pd.DataFrame:
    """The attempts of a job whose worker died, hung or exceeded the time limit."""
    message = f"{job.task.task_id}: {job.sharder} was aborted: {error}"
    return pd.concat([_failed(job, seed, math.nan, message) for seed in job.seeds], ignore_index=True)


def _failed(job: Job, seed: int, seconds: float, error: str) -> pd.DataFrame:
    head = (job.task.task_id, job.sharder, seed, seconds, error)
    return pd.DataFrame([(*head, None, -1, -1, -1, None, -1, -1)], columns=SOLVE_COLUMNS)


def gather(jobs: BenchmarkJobs, records: Records) -> tuple[tuple[SeededPlan, ...], pd.DataFrame]:
    """Read the results of all jobs from their records, in the order of the jobs.

    Returns:
        Every plan found, with its predicted cost; and `benchmark.attempts` with the columns `task_id, sharder, seed,
        seconds, error`, where `error` is null if a plan was found.
    """
    plans: list[SeededPlan] = []
    attempts = []
    for job in jobs.jobs:
        record = records[job.key]
        frame = record if isinstance(record, pd.DataFrame) else record()
        for seed, rows in frame.groupby("seed", sort=False):
            attempts.append(rows[_ATTEMPT_COLUMNS].iloc[:1])
            if rows["table"].notna().all():
                plan = _plan(job, rows, jobs.settings)
                plans.append(SeededPlan(priced(plan, jobs.models), int(str(seed))))
    frame = pd.concat(attempts, ignore_index=True)
    return tuple(plans), frame.assign(error=frame["error"].astype(object))


def _plan(job: Job, rows: pd.DataFrame, settings: SharderSettings) -> Plan:
    task = task_from_frame(rows, job.task)
    return Plan(task, *shards_from_frame(rows, task), job.sharder, memory=settings.memory)


def _ordered(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The frame with `columns` in this order, followed by those of `OPTIONAL_COLUMNS` that it has."""
    return frame[[*columns, *(name for name in OPTIONAL_COLUMNS if name in frame)]]


def bench_plans_frame(plans: Sequence[SeededPlan]) -> pd.DataFrame:
    """`benchmark.plans`: the columns of `search.plans`, and `seed`."""
    frames = [each.plan.to_frame().assign(seed=each.seed) for each in plans]
    columns = [*FRAME_COLUMNS[:2], "seed", *FRAME_COLUMNS[2:]]
    return _ordered(pd.concat(frames, ignore_index=True), columns) if frames else pd.DataFrame(columns=columns)


def plans_to_measure(
    plans: Sequence[SeededPlan], tasks: pd.DataFrame, params: BenchmarkSharderParams
) -> tuple[Plan, ...]:
    """The plans whose task is marked `is_measured` and whose seed is one of the first `measured_seeds`.

    The sharder of a plan gets its seed as an ending, so that the plans of one task have different names.
    """
    is_measured = suite_of_tasks(tasks)["is_measured"].to_dict()
    last = params.seed + params.measured_seeds
    return tuple(_named(each) for each in plans if is_measured[each.plan.task.task_id] and each.seed < last)


def bench_plan_costs(plans: Sequence[SeededPlan], measured: pd.DataFrame) -> pd.DataFrame:
    """`benchmark.plan_costs`: the columns of `search.plan_costs` and `seed`.

    Args:
        plans: all plans.
        measured: measured costs of the result of `plans_to_measure`, as `steps.measured_costs` returns them.
    """
    costs = plan_costs_frame([_named(each) for each in plans], measured)
    names = costs["sharder"].str.rsplit("/", n=1, expand=True)
    costs["sharder"] = names[0]
    costs.insert(list(costs.columns).index("sharder") + 1, "seed", names[1].astype(np.int64))
    return costs


def _named(each: SeededPlan) -> Plan:
    return replace(each.plan, sharder=f"{each.plan.sharder}/{each.seed}")


@cache
def _source_digest() -> str:
    """A hash of the packages that compute plans. Plans of older code are not reused."""
    root = Path(neuroshard_pipeline.__file__).parent
    rooms = ("tables", "cost_models", "torchrec_plan", "search", "sharders")
    sources = [path for room in rooms for path in sorted((root / room).rglob("*.py"))]
    return digest(*(path.read_text(encoding="utf-8") for path in sources))
