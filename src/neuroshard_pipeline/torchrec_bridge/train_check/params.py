"""Parameters of the training check, and the error that it raises."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.torchrec_bridge.ranks import RankParams


class TrainCheckError(NeuroShardError):
    """A training check cannot run, one of its ranks failed, or its plans trained to different losses."""


class TrainTaskParams(Parameters):
    """The tables, ranks and batches that are trained.

    Attributes:
        tables: path of a file of embedding tables.
        row_scale: divisor of the number of rows of every table in the file.
        task_id: name of a task of `augment.sharding_tasks`, or null to train the tables of the file. Tables of a
            task are not scaled.
        world_size: number of ranks, one process each, all on this host.
        batch_size: global batch, of which every rank trains an equal share.
        memory_gib: memory limit for embeddings on every rank, GiB.
        criteo_file: a click log in Criteo's format with the samples, or null to draw samples from the tables' reuse
            profiles.
        num_batches: number of distinct global batches, which are trained in a cycle.
        seed: seed of drawn samples.
    """

    tables: str
    row_scale: float = Field(gt=0, le=1e9)
    task_id: str | None
    world_size: int = Field(ge=1, le=1024)
    batch_size: int = Field(ge=1, le=2**24)
    memory_gib: float = Field(gt=0)
    criteo_file: str | None
    num_batches: PositiveInt
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_size % self.world_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of world_size {self.world_size}")
        return self

    @property
    def memory_bytes(self) -> int:
        """Memory limit for embeddings on every rank, bytes."""
        return int(self.memory_gib * 2**30)


class TrainingParams(RankParams):
    """The model, its training and the timed steps.

    Attributes:
        dense: whether the dense network is replicated (`ddp`) or sharded by `fully_shard` (`fsdp2`).
        dense_layers: widths of the layers that process the dense features.
        cross_layers: number of layers of the cross network [Wang2021, arXiv 2008.13535].
        cross_rank: rank of the low-rank matrices of the cross network.
        over_layers: widths of the layers after the cross network, without the last one, whose width is 1.
        learning_rate: learning rate of SGD, for tables and dense network.
        rounds: number of rounds; in each round every plan has one turn, in a new random order.
        warmup_steps: steps at the start of every turn that are not timed.
        steps_per_round: steps of every turn that are timed.
        loss_tolerance: largest accepted relative difference between the losses of two plans at the same step.
        seed: seed of the initial weights and of the order of turns.
    """

    dense: Literal["ddp", "fsdp2"]
    dense_layers: tuple[PositiveInt, ...] = Field(min_length=1)
    cross_layers: PositiveInt
    cross_rank: PositiveInt
    over_layers: tuple[PositiveInt, ...] = Field(min_length=1)
    learning_rate: float = Field(gt=0)
    rounds: PositiveInt
    warmup_steps: int = Field(ge=0)
    steps_per_round: PositiveInt
    loss_tolerance: float = Field(gt=0)
    seed: int = Field(ge=0)
