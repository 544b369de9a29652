"""What one measurement runs: the shards of one rank, or the volumes of one collective."""

from __future__ import annotations

from dataclasses import dataclass

from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard

#: Purpose of the samples that models are trained on; the others belong to a group that models are judged by
#: (`augment.varied_draws`).
TRAINING = "training"


@dataclass(frozen=True)
class ComputeSample:
    """The shards of one rank, looked up by one fused kernel.

    Attributes:
        sample_id: stable name; the same id always means the same shards.
        batch_size: global batch, as every rank looks up its tables for the whole batch.
        shards: at least one; a table may stand more than once, with different columns.
        optimizer: fused into the backward pass, one of `task.OPTIMIZERS`.
    """

    sample_id: str
    batch_size: int
    shards: tuple[Shard, ...]
    optimizer: str = "sgd"

    @property
    def lookup_bytes(self) -> float:
        """Bytes of rows that one batch looks up, as often as its ids name them."""
        return self.batch_size * sum(
            shard.table.pooling_factor * shard.embedding_dim * BYTES_PER_ELEMENT[shard.table.data_type]
            for shard in self.shards
        )


@dataclass(frozen=True)
class CommSample:
    """One pair of all-to-all collectives: pooled embeddings forward, their gradients backward.

    Attributes:
        sample_id: stable name.
        batch_size: global batch.
        dim_sums: per rank, the sum of the widths of its shards.
        start_skew_ms: per rank, how much later than the first rank it enters the forward collective.
    """

    sample_id: str
    batch_size: int
    dim_sums: tuple[int, ...]
    start_skew_ms: tuple[float, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.dim_sums)
