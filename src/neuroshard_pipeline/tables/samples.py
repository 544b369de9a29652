"""Samples: a sample is what one measurement runs, either the shards of one rank or collectives."""

from dataclasses import dataclass
from typing import Literal, get_args

from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard
from neuroshard_pipeline.tables.task import DEFAULT_OPTIMIZER

#: Purpose of the samples that cost models are trained on; all other purposes name groups of evaluation samples
#: (`augment.varied_draws`).
TRAINING = "training"

#: Collectives to which all ranks contribute equally.
Reduction = Literal["reduce_scatter", "all_gather", "all_reduce"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)


@dataclass(frozen=True)
class ComputeSample:
    """The shards of one rank, looked up by one fused kernel.

    Attributes:
        sample_id: name; among the samples of a campaign, equal names mean equal shards.
        batch_size: number of training samples whose ids are looked up. Every rank looks up its shards for the whole
            batch, and replicas of data-parallel tables for its own part of the batch.
        shards: at least one shard; several shards may belong to one table.
        optimizer: optimizer that is fused into the backward pass, one of `task.OPTIMIZERS`.
    """

    sample_id: str
    batch_size: int
    shards: tuple[Shard, ...]
    optimizer: str = DEFAULT_OPTIMIZER

    @property
    def lookup_bytes(self) -> float:
        """Bytes that the lookups of one batch read; a row that is looked up several times counts several times."""
        return self.batch_size * sum(
            shard.table.pooling_factor * shard.embedding_dim * BYTES_PER_ELEMENT[shard.table.data_type]
            for shard in self.shards
        )


@dataclass(frozen=True)
class CommSample:
    """One pair of all-to-all collectives: pooled embeddings forward, their gradients backward.

    Attributes:
        sample_id: name.
        batch_size: global batch size.
        dim_sums: for every rank, the sum of the widths of its shards.
        start_skew_ms: how much later than the first rank each rank enters the forward collective.
    """

    sample_id: str
    batch_size: int
    dim_sums: tuple[int, ...]
    start_skew_ms: tuple[float, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.dim_sums)


@dataclass(frozen=True)
class ReductionSample:
    """One collective to which all ranks contribute equally.

    Attributes:
        sample_id: name.
        collective: one of `REDUCTIONS`.
        size_bytes: size of the whole buffer, as in nccl-tests. all_reduce and reduce_scatter add up one such buffer
            from every rank; reduce_scatter gives each rank an equal share of the sum. all_gather joins equal shares of
            all ranks into one such buffer.
        world_size: number of ranks.
        hosts: number of hosts, with the same number of ranks on each.
    """

    sample_id: str
    collective: Reduction
    size_bytes: int
    world_size: int
    hosts: int


#: A sample that several ranks measure together.
CollectiveSample = CommSample | ReductionSample
