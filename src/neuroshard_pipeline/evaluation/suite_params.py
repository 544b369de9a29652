"""Parameters of the benchmark: its suites of sharding tasks, and the sharders that solve them. `conf/` has the values.

The tasks of a suite form groups; results are given by suite and by group.
"""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from neuroshard_pipeline.augment.drawing import Dimension, Dimensions, TableLimits
from neuroshard_pipeline.augment.pool import PoolParams
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.sharders.registry import SharderNames

#: Suites of this project. Users add their own suites under other names.
SUITES: tuple[str, ...] = (
    "paper_4", "paper_8", "criteo", "hugectr_t510", "scale", "tight", "giant_narrow", "many_tiny", "several_hosts",
    "sequences",
)  # fmt: skip


def _known_suites(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in SUITES:
            raise ValueError(f"use some of {', '.join(SUITES)}, not {name!r}; list a file of your own under `user`")
    if len(set(names)) < len(names):
        raise ValueError("name every suite once")
    return names


class SuiteParams(Parameters):
    """The suites of a benchmark and their sizes.

    Attributes:
        names: the suites from `SUITES` that are run.
        user: suites of the user; maps the name of a suite to the path of a file of sharding tasks (`tables.task_file`).
        tasks: number of tasks in each of the suites `paper_4`, `paper_8` and `tight`.
        batch_size: global batch size of every task, except for the tasks of the user.
        local_world_size: ranks per host of tasks that do not state it. With null, all ranks of such a task are on one
            host, unless the cost models belong to a modelled cluster, which then gives the number.
        most_measured_ranks: largest number of ranks of a task whose plans are measured. Tasks with several replica
            groups or with `host_memory_bytes` are never measured, nor are tasks on several hosts if one of their tables
            may get a host tier.
        seed: seed of the tasks that are drawn.
    """

    names: Annotated[tuple[str, ...], AfterValidator(_known_suites)]
    user: dict[str, str]
    tasks: int = Field(ge=1, le=10_000)
    batch_size: int = Field(ge=1, le=2**24)
    local_world_size: int | None = Field(ge=1)
    most_measured_ranks: int = Field(ge=0, le=4096)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        taken = sorted(set(self.user) & set(SUITES))
        if taken:
            raise ValueError(f"user suite {taken[0]!r} has the name of a suite of this project; give it another one")
        if not self.names and not self.user:
            raise ValueError("name at least one suite")
        return self


class PaperSuiteParams(TableLimits):
    """Tasks of `paper_4` and `paper_8`, drawn as in [Zha2023] §4, with one group of tasks per maximum dimension.

    Attributes:
        dimensions: values of `embedding_dim`; the group with maximum dimension d draws from the values up to d.
        memory_bytes: memory of every rank.
        memory_fill: maximum size of the weights of a task, as a share of the memory of all ranks.
    """

    memory_bytes: int = Field(gt=0)
    memory_fill: float = Field(gt=0, le=1)


class TightSuiteParams(Parameters):
    """Tasks whose largest table exceeds the memory of a rank, so that it must be split.

    Attributes:
        world_sizes: numbers of ranks; the tasks cycle through them.
        memory_fill: size of the tables, as a share of the memory of all ranks.
    """

    world_sizes: tuple[int, ...] = Field(min_length=1)
    memory_fill: float = Field(gt=0, lt=1)


class CountedSuiteParams(TightSuiteParams):
    """Base class: like `TightSuiteParams`, with a number of tasks of its own.

    Attributes:
        tasks: number of tasks.
    """

    tasks: int = Field(ge=1, le=10_000)


class GiantNarrowSuiteParams(CountedSuiteParams):
    """Tasks with giant tables, whose narrowest column shard exceeds the memory of a rank.

    The other tables of a task are drawn as for `paper_4` and `paper_8`.

    Attributes:
        giants_per_4_ranks: number of giant tables for every 4 ranks; every task has at least one.
        widths: values of `embedding_dim` of giant tables; each table gets one of them at random.
        excess: size of a giant table's narrowest column shard, as a multiple of the memory of a rank.
    """

    giants_per_4_ranks: int = Field(ge=1)
    widths: Dimensions
    excess: float = Field(gt=1)


class ManyTinySuiteParams(CountedSuiteParams):
    """Tasks of tables with fewer rows than the batch has samples.

    If `memory_fill` is at most `1 / (2 * world_size)`, every rank can hold replicas of all tables and their gradients.

    Attributes:
        min_tables: smallest number of tables of a task.
        max_tables: largest number of tables of a task.
        min_rows: smallest number of rows of a table; the logarithm of the number is drawn uniformly.
    """

    min_tables: int = Field(ge=1)
    max_tables: int = Field(ge=1)
    min_rows: int = Field(ge=1)


class SequencesSuiteParams(CountedSuiteParams):
    """Tasks drawn as for `paper_4` and `paper_8`, except that the largest tables are sequence tables of one width.

    Attributes:
        sequences_per_4_ranks: number of sequence tables for every 4 ranks; every task has at least one.
        embedding_dim: width of the sequence tables.
    """

    sequences_per_4_ranks: int = Field(ge=1)
    embedding_dim: Dimension


class SeveralHostsSuiteParams(Parameters):
    """Tasks drawn as for `paper_4` and `paper_8`, on several hosts.

    Attributes:
        tasks: number of tasks.
        ranks: pairs of a number of ranks and a number of ranks per host; the tasks cycle through them.
    """

    tasks: int = Field(ge=1, le=10_000)
    ranks: tuple[tuple[int, int], ...] = Field(min_length=1)


class ScaleSuiteParams(Parameters):
    """Tasks with very many tables.

    Attributes:
        sizes: pairs of a number of tables and a number of ranks, one for each task.
        row_scale: divisor of the number of rows of every table of the full-scale pool.
        memory_fill: size of the tables, as a share of the memory of all ranks.
    """

    sizes: tuple[tuple[int, int], ...] = Field(min_length=1)
    row_scale: float = Field(gt=0, le=1e6)
    memory_fill: float = Field(gt=0, lt=1)


class PublicTask(Parameters):
    """One task of a public table set.

    Attributes:
        suite: the suite of the task.
        tables: path of a file of embedding tables.
        task_id: id of the task.
        world_size: number of ranks.
        memory_bytes: memory of every rank.
        row_scale: divisor of the number of rows of every table.
    """

    suite: Annotated[str, Field(pattern="^(criteo|hugectr_t510)$")]
    tables: str
    task_id: str = Field(min_length=1)
    world_size: int = Field(ge=2, le=4096)
    memory_bytes: int = Field(gt=0)
    row_scale: float = Field(gt=0, le=1e9)


class PublicSuiteParams(Parameters):
    """Tasks of public table sets: `criteo` and `hugectr_t510`.

    Attributes:
        tasks: tasks of both suites.
    """

    tasks: tuple[PublicTask, ...]


@dataclass(frozen=True)
class SuiteSettings:
    """All parameters of the suites: each attribute holds those of the suite of its name, or of the whole benchmark."""

    suites: SuiteParams
    pool: PoolParams
    paper: PaperSuiteParams
    tight: TightSuiteParams
    scale: ScaleSuiteParams
    public: PublicSuiteParams
    giant_narrow: GiantNarrowSuiteParams
    many_tiny: ManyTinySuiteParams
    several_hosts: SeveralHostsSuiteParams
    sequences: SequencesSuiteParams
    memory: MemoryModel


class BenchmarkSharderParams(Parameters):
    """The sharders that solve the tasks.

    Attributes:
        sharders: names of sharders, in the order of tables and figures.
        seed: seed of sharders that draw random numbers.
        left_out: by suite, the sharders that do not run on it because they take too long.
    """

    sharders: SharderNames = Field(min_length=2)
    seed: int = Field(ge=0)
    left_out: dict[str, SharderNames]

    def sharders_of(self, suite: str) -> tuple[str, ...]:
        """The sharders that run on a suite."""
        return tuple(name for name in self.sharders if name not in self.left_out.get(suite, ()))
