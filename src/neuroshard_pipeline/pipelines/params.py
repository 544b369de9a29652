"""Parameter types that belong to a pipeline rather than to a domain package."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from neuroshard_pipeline.sharders.registry import SHARDERS
from neuroshard_pipeline.tables.task import OPTIMIZERS

#: More ranks or samples than any training job of the coming years; a slip of the pen, not a task.
MAX_WORLD_SIZE = 4096
MAX_BATCH_SIZE = 2**30
MAX_MEMORY_GIB = 2.0**20


def _one_of(known: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"use one of {', '.join(known)}")
        return value

    return AfterValidator(check)


def _different(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("name every sharder once")
    return values


SharderName = Annotated[str, _one_of(SHARDERS)]


class ContestParams(BaseModel):
    """Who solves the sharding tasks.

    Attributes:
        sharders: names of sharders, in the order of tables and figures.
        seed: of sharders that draw random numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharders: Annotated[list[SharderName], AfterValidator(_different)] = Field(min_length=1)
    seed: int = Field(ge=0)


class TorchRecExportParams(BaseModel):
    """How plans are written for TorchRec.

    Attributes:
        sharder: whose plans are exported.
        local_world_size: ranks per host, or null for all ranks on one host.
        compute_device: where the tables will be trained.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharder: SharderName
    local_world_size: int | None = Field(ge=1)
    compute_device: Literal["cuda", "cpu"]


class PlanParams(BaseModel):
    """The sharding task of `kedro run --pipeline plan`.

    Attributes:
        tables: path of a CSV, Parquet or JSON file of embedding tables.
        world_size: ranks of the training job.
        batch_size: global batch.
        memory_gib: memory for embeddings on every rank, GiB.
        optimizer: one of `tables.OPTIMIZERS`.
        constraints: path of a YAML or JSON file of constraints, or null for none; see `tables.constraint_file`.
        links: path of a CSV file of bandwidths between the ranks, or null where links do not differ; see
            `tables.read_bandwidths`.
        sharder: one of `sharders.SHARDERS`.
        seed: of sharders that draw random numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: str
    world_size: int = Field(ge=1, le=MAX_WORLD_SIZE)
    batch_size: int = Field(ge=1, le=MAX_BATCH_SIZE)
    memory_gib: float = Field(gt=0, le=MAX_MEMORY_GIB, allow_inf_nan=False)
    optimizer: Annotated[str, _one_of(OPTIMIZERS)]
    constraints: str | None
    links: str | None
    sharder: SharderName
    seed: int = Field(ge=0)
