"""Parameters of the training check."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainTaskParams(BaseModel):
    """What is trained: tables, ranks, batches.

    Attributes:
        tables: path of a file of embedding tables.
        row_scale: the file's rows are divided by this.
        task_id: train the tables of this task of `augment.sharding_tasks`, as they stand, instead of the file's.
        world_size: ranks, one process each, all on this host.
        batch_size: global batch; every rank trains the same share of it.
        memory_gib: memory for embeddings on every rank that plans must respect, GiB.
        criteo_file: a click log in Criteo's format that samples are read from; null draws them from the tables'
            reuse profiles.
        num_batches: distinct global batches, trained in turn.
        seed: of drawn samples.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: str
    row_scale: float = Field(gt=0, le=1e9)
    task_id: str | None
    world_size: int = Field(ge=1, le=1024)
    batch_size: int = Field(ge=1, le=2**24)
    memory_gib: float = Field(gt=0)
    criteo_file: str | None
    num_batches: int = Field(ge=1)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> TrainTaskParams:
        if self.batch_size % self.world_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of world_size {self.world_size}")
        return self


class TrainingParams(BaseModel):
    """How it is trained, and what is timed.

    Attributes:
        backend: of torch.distributed; `gloo` trains on CPUs, `nccl` on one GPU per rank.
        dense: the dense network is replicated (`ddp`) or sharded by `fully_shard` (`fsdp2`).
        dense_layers: widths of the layers that take the dense features.
        cross_layers: layers of the cross network [Wang2021, arXiv 2008.13535].
        cross_rank: rank of its low-rank matrices.
        over_layers: widths of the layers above it, without the last one, which has width 1.
        learning_rate: of SGD, for tables and dense network.
        rounds: every plan is trained once per round, in an order drawn anew for each round.
        warmup_steps: steps at the start of a plan's turn that are trained but not timed.
        steps_per_round: steps of a turn that are timed.
        loss_tolerance: relative difference between the losses of two plans at the same step that is still agreement.
        threads: of every rank on CPUs; 1 also gives every rank a core of its own.
        timeout_s: a rank that does not finish a turn, or does not answer in a collective, in this time has failed.
        seed: of the initial weights and the order of turns.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["gloo", "nccl"]
    dense: Literal["ddp", "fsdp2"]
    dense_layers: tuple[int, ...] = Field(min_length=1)
    cross_layers: int = Field(ge=1)
    cross_rank: int = Field(ge=1)
    over_layers: tuple[int, ...] = Field(min_length=1)
    learning_rate: float = Field(gt=0)
    rounds: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)
    steps_per_round: int = Field(ge=1)
    loss_tolerance: float = Field(gt=0)
    threads: int = Field(ge=1)
    timeout_s: float = Field(gt=0)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> TrainingParams:
        if min(*self.dense_layers, *self.over_layers) < 1:
            raise ValueError(f"dense_layers {self.dense_layers} and over_layers {self.over_layers} must be positive")
        return self

    @property
    def compute_device(self) -> Literal["cuda", "cpu"]:
        """Where the tables are trained."""
        return "cuda" if self.backend == "nccl" else "cpu"
