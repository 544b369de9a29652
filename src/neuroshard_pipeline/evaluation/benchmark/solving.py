"""Every sharder on every task, in shards that resume: one shard per task and sharder, with all its seeds."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

import neuroshard_pipeline
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.benchmark.params import BenchContestParams
from neuroshard_pipeline.evaluation.benchmark.suites import suite_of_tasks
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import with_predicted_cost
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.policies.policy import NO_POLICIES, Policies
from neuroshard_pipeline.sharders.registry import LEARNED, solve_all
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.workers import Outcome

#: Columns of a shard: one row per shard of a plan; an attempt without a plan is one row with an error.
SOLVE_COLUMNS: tuple[str, ...] = (
    "task_id", "sharder", "seed", "seconds", "error", "table", "column_offset", "embedding_dim", "rank",
)  # fmt: skip

_ATTEMPT_COLUMNS = ["task_id", "sharder", "seed", "seconds", "error"]
#: Packages whose code decides a plan.
_DECIDING = ("tables", "cost_models", "search", "sharders")
_DIGEST_LENGTH = 16

Shards = Mapping[str, pd.DataFrame | Callable[[], pd.DataFrame]]


@dataclass(frozen=True)
class Job:
    """One task for one sharder.

    Attributes:
        key: of its shard: a hash of everything that decides plans stands in it.
        task: what is solved.
        sharder: who solves it.
        seeds: with each of these.
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
class BenchSolutions:
    """All attempts of a contest.

    Attributes:
        plans: every plan found, with its predicted cost.
        attempts: `task_id, sharder, seed, seconds, error`; `error` is null for a plan.
    """

    plans: tuple[SeededPlan, ...]
    attempts: pd.DataFrame


@dataclass(frozen=True)
class Contest:
    """Everything that decides plans.

    Attributes:
        jobs: task by task.
        models: cost models.
        settings: of the sharders.
        policies: of the sharders that need them.
    """

    jobs: tuple[Job, ...]
    models: CostModels
    settings: SharderSettings
    policies: Policies

    @classmethod
    def of(
        cls,
        tasks: pd.DataFrame,
        params: BenchContestParams,
        models: CostModels,
        settings: SharderSettings,
        policies: Policies = NO_POLICIES,
    ) -> Contest:
        """Every sharder of `params` for every task of `benchmark.tasks` whose suite it runs on."""
        common = (_source_digest(), _saved_digest(models.compute), _saved_digest(models.comm), _content(settings))
        suites = suite_of_tasks(tasks)["suite"].to_dict()
        learned = {name: _content(policies.of(name)) for name in params.sharders if name in LEARNED}
        jobs = []
        for task in tasks_from_frame(tasks):
            whole_task = _digest(*common, _content(task))
            suite = suites[task.task_id]
            for sharder in params.sharders_of(suite):
                seeds = params.seeds_of(sharder, suite)
                digest = _digest(whole_task, sharder, learned.get(sharder), seeds)
                jobs.append(Job(f"{task.task_id}/{sharder}-{digest}", task, sharder, seeds))
        return cls(tuple(jobs), models, settings, policies)


def solve_missing(
    contest: Contest,
    done: Shards,
    run: Callable[[Callable[[Job], pd.DataFrame], Sequence[Job]], Iterable[Outcome[pd.DataFrame]]],
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Solve what no earlier run has solved.

    Args:
        contest: what is to be solved.
        done: the shards of earlier runs.
        run: applies a function to items and yields outcomes as they finish, as `workers.map_items` does.

    Yields:
        (key, shard); the caller stores each before asking for the next.
    """
    missing = [job for job in contest.jobs if job.key not in done]
    needs_torchrec = any(job.sharder == TorchRecSharder.name for job in missing)
    for outcome in run(Solver(contest.models, contest.settings, contest.policies, needs_torchrec), missing):
        job = missing[outcome.index]
        yield job.key, _given_up(job, outcome.error) if outcome.value is None else outcome.value


@dataclass(frozen=True)
class Solver:
    """Solves jobs wherever it is sent; called with a job it returns its shard.

    TorchRec is imported before the first job of a worker, whoever's it is: its seconds are not a task's then, and the
    worker does not have to import it later.
    """

    models: CostModels
    settings: SharderSettings
    policies: Policies
    needs_torchrec: bool

    def __call__(self, job: Job) -> pd.DataFrame:
        """All attempts of `job` with their plans, `SOLVE_COLUMNS`."""
        if self.needs_torchrec:
            require_torchrec()
        return pd.concat([self._attempt(job, seed) for seed in job.seeds], ignore_index=True)

    def _attempt(self, job: Job, seed: int) -> pd.DataFrame:
        solved = solve_all([job.task], [job.sharder], self.models, self.settings, seed, policies=self.policies)
        seconds, error = solved.attempts.iloc[0][["seconds", "error"]]
        if error is not None:
            return _failed(job, seed, seconds, error)
        return solved.plans[0].to_frame().assign(seed=seed, seconds=seconds, error=None)[list(SOLVE_COLUMNS)]


def _given_up(job: Job, error: str | None) -> pd.DataFrame:
    """The attempts of a job whose worker died, hung or took longer than it may."""
    told = f"{job.task.task_id}: {job.sharder} was given up: {error}"
    return pd.concat([_failed(job, seed, math.nan, told) for seed in job.seeds], ignore_index=True)


def _failed(job: Job, seed: int, seconds: float, error: str) -> pd.DataFrame:
    head = (job.task.task_id, job.sharder, seed, seconds, error)
    return pd.DataFrame([(*head, None, -1, -1, -1)], columns=list(SOLVE_COLUMNS))


def gather(contest: Contest, shards: Shards) -> BenchSolutions:
    """Plans and attempts of a finished contest, in the order of its jobs."""
    plans: list[SeededPlan] = []
    attempts = []
    for job in contest.jobs:
        shard = shards[job.key]
        frame = shard if isinstance(shard, pd.DataFrame) else shard()
        for seed, rows in frame.groupby("seed", sort=False):
            attempts.append(rows[_ATTEMPT_COLUMNS].iloc[:1])
            if rows["table"].notna().all():
                plan = _plan(job, rows, contest.settings)
                plans.append(SeededPlan(with_predicted_cost(plan, contest.models), int(str(seed))))
    frame = pd.concat(attempts, ignore_index=True)
    return BenchSolutions(tuple(plans), frame.assign(error=frame["error"].astype(object)))


def _plan(job: Job, rows: pd.DataFrame, settings: SharderSettings) -> Plan:
    tables = {table.name: table for table in job.task.tables}
    columns = (rows[name].tolist() for name in ("table", "column_offset", "embedding_dim", "rank"))
    placed = [(Shard(tables[name], offset, width), rank) for name, offset, width, rank in zip(*columns, strict=True)]
    shards, ranks = zip(*placed, strict=True)
    return Plan(job.task, shards, ranks, job.sharder, memory=settings.memory)


def bench_plans_frame(plans: Sequence[SeededPlan]) -> pd.DataFrame:
    """`benchmark.plans`: `task_id, sharder, seed, table, column_offset, embedding_dim, rank`."""
    frames = [each.plan.to_frame().assign(seed=each.seed) for each in plans]
    columns = ["task_id", "sharder", "seed", "table", "column_offset", "embedding_dim", "rank"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


@cache
def _source_digest() -> str:
    """What the code that decides plans contains, so that no plan of an older version passes for one of this."""
    root = Path(neuroshard_pipeline.__file__).parent
    sources = [path for room in _DECIDING for path in sorted((root / room).rglob("*.py"))]
    return _digest(*(path.read_text(encoding="utf-8") for path in sources))


def _saved_digest(model: Any) -> str:
    """What the files of a model would contain."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return _digest(*(path.read_bytes() for path in files))


def _content(value: Any) -> Any:
    """All of a value that may show less of itself: nested dataclasses, parameters and models, field by field."""
    if hasattr(value, "save"):
        return _saved_digest(value)
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if is_dataclass(value):
        return [(field.name, _content(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, Mapping):
        return [(_content(key), _content(item)) for key, item in value.items()]
    return [_content(item) for item in value] if isinstance(value, list | tuple) else value


def _digest(*parts: Any) -> str:
    return hashlib.sha256("\x1f".join(map(repr, parts)).encode()).hexdigest()[:_DIGEST_LENGTH]
