"""Parameters of the training check, and the error that it raises."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.torchrec_bridge.truth.params import NetworkName, TurnParams

#: The models by name: TorchRec's `DLRM_DCN` for tables of different widths, and `dhen.Dhen`.
ModelName = Literal["dlrm", "dhen"]
#: How the dense network is stored: replicated, sharded over all ranks, or sharded inside and replicated across hosts.
DenseMode = Literal["ddp", "fsdp2", "hybrid"]


class TrainCheckError(NeuroShardError):
    """A training check cannot run, one of its ranks failed, or its plans trained to different losses."""


class TrainTaskParams(Parameters):
    """The tables, ranks and batches that are trained.

    Attributes:
        tables: path of a file of embedding tables.
        row_scale: divisor of the number of rows of every table in the file.
        task_id: name of a task of `augment.sharding_tasks`, or null to train the tables of the file. Tables of a
            task are not scaled.
        world_size: number of ranks, one process each, all on this machine.
        local_world_size: ranks that count as one host; null for all of them.
        batch_size: global batch, of which every rank trains an equal share.
        memory_gib: memory of every rank, GiB. The embeddings get what the dense network leaves.
        criteo_file: a click log in Criteo's format with the samples, or null to draw samples from the tables' reuse
            profiles.
        num_batches: number of distinct global batches, which are trained in a cycle.
        seed: seed of drawn samples.
    """

    tables: str
    row_scale: float = Field(gt=0, le=1e9)
    task_id: str | None
    world_size: int = Field(ge=1, le=1024)
    local_world_size: int | None = Field(ge=1)
    batch_size: int = Field(ge=1, le=2**24)
    memory_gib: float = Field(gt=0)
    criteo_file: str | None
    num_batches: PositiveInt
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_size % self.world_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of world_size {self.world_size}")
        if self.world_size % (self.local_world_size or 1):
            raise ValueError(f"world_size {self.world_size} must be a multiple of local_world_size")
        return self

    @property
    def memory_bytes(self) -> int:
        """Memory of every rank, bytes."""
        return int(self.memory_gib * 2**30)


class DhenParams(Parameters):
    """Sizes of DHEN (`dhen.Dhen`).

    Attributes:
        layers: number of layers, each an ensemble of four interactions.
        width: width of the embeddings inside the layers.
        outputs: embeddings that every interaction returns; a layer returns four times as many.
        heads: heads of the self-attention.
    """

    layers: PositiveInt
    width: PositiveInt
    outputs: PositiveInt
    heads: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        return self


class TrainingParams(TurnParams):
    """The models, their training and the timed steps.

    Attributes:
        models: `dlrm`, MLPerf's DLRM-v2, and `dhen`, whose dense network takes longer than the embeddings.
        dense: how the dense network is stored: replicated (`ddp`), sharded over all ranks (`fsdp2`), or sharded inside
            every host and replicated across hosts (`hybrid`), both with `fully_shard`.
        trainer: `plain`, or `pipelined`: TorchRec's `TrainPipelineSparseDist` sends the ids of the next batch during a
            step. The plans are then made for that.
        networks: names of networks, such as `ethernet-25` or a key of `lab.networks`, make the ranks virtual; every
            step is replayed with each of them. Without names, the ranks are real.
        dense_layers: widths of the layers that process the dense features.
        cross_layers: number of layers of a cross network [Wang2021, arXiv 2008.13535].
        cross_rank: rank of the low-rank matrices of a cross network.
        over_layers: widths of the last layers, without the last one, whose width is 1.
        dhen: further sizes of DHEN.
        loss_tolerance: largest accepted relative difference between two losses of a model at the same step.
        loss_steps: number of first steps whose losses are compared; with later steps, rounding errors grow.
        quantile: the quantile of the timed steps that counts as the time of a step.
    """

    models: tuple[ModelName, ...] = Field(min_length=1)
    dense: tuple[DenseMode, ...] = Field(min_length=1)
    trainer: Literal["plain", "pipelined"]
    networks: tuple[NetworkName, ...]
    dense_layers: tuple[PositiveInt, ...] = Field(min_length=1)
    cross_layers: PositiveInt
    cross_rank: PositiveInt
    over_layers: tuple[PositiveInt, ...] = Field(min_length=1)
    dhen: DhenParams
    loss_tolerance: float = Field(gt=0)
    loss_steps: PositiveInt
    quantile: float = Field(ge=0, le=1)
