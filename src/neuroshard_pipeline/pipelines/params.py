"""Parameter types that belong to a pipeline rather than to a domain package."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ContestParams(BaseModel):
    """Who solves the sharding tasks.

    Attributes:
        sharders: names of sharders, in the order of tables and figures.
        seed: of sharders that draw random numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharders: list[str] = Field(min_length=1)
    seed: int = Field(ge=0)


class TorchRecExportParams(BaseModel):
    """How plans are written for TorchRec.

    Attributes:
        sharder: whose plans are exported.
        local_world_size: ranks per host, or null for all ranks on one host.
        compute_device: where the tables will be trained.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharder: str
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
        sharder: one of `sharders.SHARDERS`.
        seed: of sharders that draw random numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: str
    world_size: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    memory_gib: float = Field(gt=0)
    optimizer: str
    constraints: str | None
    sharder: str
    seed: int = Field(ge=0)
