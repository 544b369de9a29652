"""Parameters of the benchmark: flat, frozen, without defaults (the values live in `conf/`)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.augment.drawing import TableLimits
from neuroshard_pipeline.sharders.registry import SHARDERS

#: Suites that are drawn or read by themselves; users add theirs by name.
SUITES: tuple[str, ...] = ("paper_4", "paper_8", "criteo", "hugectr_t510", "scale", "tight")


def _known_suites(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in SUITES:
            raise ValueError(f"use some of {', '.join(SUITES)}, not {name!r}; your own files go under `user`")
    if len(set(names)) < len(names):
        raise ValueError("name every suite once")
    return names


def _known_sharders(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in SHARDERS:
            raise ValueError(f"use some of {', '.join(SHARDERS)}, not {name!r}")
    if len(set(names)) < len(names):
        raise ValueError("name every sharder once")
    return names


class SuiteParams(BaseModel):
    """Which suites there are, and how large.

    Attributes:
        names: some of `SUITES`.
        user: suites of a user's own: name to path of a file of sharding tasks (`tables.task_file`).
        tasks: tasks of each suite that is drawn (`paper_4`, `paper_8`, `tight`); the others have as many as they list.
        batch_size: global batch of every task that is drawn.
        most_measured_ranks: tasks with more ranks than this are judged by predicted cost only.
        seed: decides every task that is drawn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: Annotated[tuple[str, ...], AfterValidator(_known_suites)]
    user: dict[str, str]
    tasks: int = Field(ge=1, le=10_000)
    batch_size: int = Field(ge=1, le=2**24)
    most_measured_ranks: int = Field(ge=0, le=4096)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        taken = sorted(set(self.user) & set(SUITES))
        if taken:
            raise ValueError(f"user suite {taken[0]!r} has the name of a suite of ours; give it another one")
        if not self.names and not self.user:
            raise ValueError("name at least one suite")
        return self


class PaperSuiteParams(TableLimits):
    """Tasks as [Zha2023] §4 draws them, a group for every maximum dimension: `paper_4` and `paper_8`.

    Attributes:
        dimensions: widths; the group of maximum dimension d draws from those up to d.
        min_tables_per_4_ranks: fewest tables of a task, for every 4 ranks.
        max_tables_per_4_ranks: most tables of a task, for every 4 ranks.
        memory_bytes: memory of every rank.
        memory_fill: the weights of a task take at most this share of the memory of all ranks.
    """

    memory_bytes: int = Field(gt=0)
    memory_fill: float = Field(gt=0, le=1)


class TightSuiteParams(BaseModel):
    """Tasks that fit only with some table split by columns.

    Attributes:
        world_sizes: numbers of ranks; tasks take them in turn.
        memory_fill: the share of the memory of all ranks that the tables take.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    world_sizes: tuple[int, ...] = Field(min_length=1)
    memory_fill: float = Field(gt=0, lt=1)


class ScaleSuiteParams(BaseModel):
    """Tasks with very many tables.

    Attributes:
        num_tables: tables of each task.
        world_sizes: ranks of each task.
        row_scale: the tables' rows are those of full scale divided by this.
        memory_fill: the share of the memory of all ranks that the tables take.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_tables: tuple[int, ...] = Field(min_length=1)
    world_sizes: tuple[int, ...] = Field(min_length=1)
    row_scale: float = Field(gt=0, le=1e6)
    memory_fill: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.num_tables) != len(self.world_sizes):
            raise ValueError(f"num_tables {self.num_tables} and world_sizes {self.world_sizes} need one value per task")
        return self


class PublicTask(BaseModel):
    """One task of a public table set.

    Attributes:
        suite: that it belongs to.
        tables: path of a file of embedding tables.
        task_id: how frames and the report call the task.
        world_size: number of ranks.
        memory_bytes: memory of every rank.
        row_scale: the tables' rows are divided by this.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: Annotated[str, Field(pattern="^(criteo|hugectr_t510)$")]
    tables: str
    task_id: str = Field(min_length=1)
    world_size: int = Field(ge=2, le=4096)
    memory_bytes: int = Field(gt=0)
    row_scale: float = Field(gt=0, le=1e9)


class PublicSuiteParams(BaseModel):
    """Tasks of public table sets: `criteo` and `hugectr_t510`.

    Attributes:
        tasks: of both suites.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: tuple[PublicTask, ...]


class BenchContestParams(BaseModel):
    """Who solves the tasks.

    Attributes:
        sharders: names, in the order of tables and figures.
        stochastic: those of `sharders` whose plans depend on a seed; they solve every task with `seeds` of them.
        seeds: how many.
        measured_seeds: plans of so many of them are measured.
        seed: the first.
        left_out: per suite, sharders that do not run there because they take too long.
        fewer_seeds: per suite, how many seeds where `seeds` would take too long.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharders: Annotated[tuple[str, ...], AfterValidator(_known_sharders)] = Field(min_length=2)
    stochastic: Annotated[tuple[str, ...], AfterValidator(_known_sharders)]
    seeds: int = Field(ge=1, le=1000)
    measured_seeds: int = Field(ge=1, le=1000)
    seed: int = Field(ge=0)
    left_out: dict[str, Annotated[tuple[str, ...], AfterValidator(_known_sharders)]]
    fewer_seeds: dict[str, Annotated[int, Field(ge=1)]]

    def sharders_of(self, suite: str) -> tuple[str, ...]:
        """Who runs on a suite."""
        return tuple(name for name in self.sharders if name not in self.left_out.get(suite, ()))

    def seeds_of(self, sharder: str, suite: str) -> tuple[int, ...]:
        """The seeds that a sharder solves every task of a suite with."""
        count = self.fewer_seeds.get(suite, self.seeds) if sharder in self.stochastic else 1
        return tuple(range(self.seed, self.seed + count))


class JudgeParams(BaseModel):
    """How verdicts are reached.

    Attributes:
        confidence: of the intervals.
        resamples: draws of the bootstrap.
        least_tasks: with fewer tasks in common there is no interval and no verdict.
        least_success: a sharder that solves a smaller share of a suite's tasks has no say in which are compared.
        seed: of the bootstrap.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    confidence: float = Field(gt=0, lt=1)
    resamples: int = Field(ge=100, le=10_000_000)
    least_tasks: int = Field(ge=2)
    least_success: float = Field(ge=0, le=1)
    seed: int = Field(ge=0)
