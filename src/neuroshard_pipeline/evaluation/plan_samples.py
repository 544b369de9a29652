"""The samples that have to be measured to know the costs of plans, and the costs of plans from those of the samples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import start_skew_ms
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Shard

PLAN_COLUMNS = ["task_id", "sharder", "table", "column_offset", "embedding_dim", "rank"]

#: Start skews are rounded to a tenth of a microsecond, far below the noise of any clock, so that samples coincide.
_SKEW_DECIMALS = 4


@dataclass(frozen=True)
class RankSamples:
    """Compute samples of the ranks of plans; ranks with the same shards share a sample.

    Attributes:
        samples: distinct samples.
        sample_ids: sample id per plan and rank; None for an empty rank.
    """

    samples: list[ComputeSample]
    sample_ids: list[tuple[str | None, ...]]


@dataclass(frozen=True)
class CollectiveSamples:
    """Communication samples of plans; plans with the same volumes and start skews share a sample.

    Attributes:
        samples: distinct samples.
        sample_ids: sample id per plan; None if an earlier campaign failed.
    """

    samples: list[CommSample]
    sample_ids: list[str | None]


def plans_frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """`search.plans`: one row per shard, `task_id, sharder, table, column_offset, embedding_dim, rank`."""
    if not plans:
        return pd.DataFrame(columns=PLAN_COLUMNS)
    return pd.concat([plan.to_frame() for plan in plans], ignore_index=True)


def rank_compute_samples(plans: Sequence[Plan]) -> RankSamples:
    """One compute sample for every distinct multiset of (table, width) on a rank of a plan."""
    samples: dict[str, ComputeSample] = {}
    sample_ids = []
    for plan in plans:
        ids: list[str | None] = []
        for shards in plan.shards_by_rank:
            if not shards:
                ids.append(None)
                continue
            sample = _rank_sample(shards, plan.task.batch_size, plan.task.optimizer)
            samples.setdefault(sample.sample_id, sample)
            ids.append(sample.sample_id)
        sample_ids.append(tuple(ids))
    return RankSamples(list(samples.values()), sample_ids)


def backward_comm_samples(plans: Sequence[Plan]) -> CollectiveSamples:
    """Collectives without start skew, whose backward cost is used."""
    return _collectives(plans, [(0.0,) * plan.task.world_size for plan in plans])


def forward_comm_samples(
    plans: Sequence[Plan], compute_ms: Sequence[Sequence[float]], backward_comm_ms: Sequence[Sequence[float]]
) -> CollectiveSamples:
    """Collectives with the start skew that follows from compute and backward communication costs.

    Args:
        plans: P plans.
        compute_ms: cost per plan and rank; NaN if the measurement failed.
        backward_comm_ms: cost per plan and rank; NaN if the measurement failed.
    """
    skews: list[tuple[float, ...] | None] = []
    for compute, backward in zip(compute_ms, backward_comm_ms, strict=True):
        start_skew = np.round(start_skew_ms(compute, backward), _SKEW_DECIMALS)
        skews.append(tuple(start_skew.tolist()) if np.isfinite(start_skew).all() else None)
    return _collectives(plans, skews)


def measured_compute_ms(ranks: RankSamples, compute_costs: pd.DataFrame) -> list[tuple[float, ...]]:
    """Forward + backward compute cost per plan and rank; 0 for an empty rank, NaN if the measurement failed."""
    measured = compute_costs[compute_costs["error"].isna()].set_index("sample_id")
    total = (measured["forward_ms"] + measured["backward_ms"]).to_dict()
    return [tuple(0.0 if name is None else total.get(name, np.nan) for name in names) for names in ranks.sample_ids]


def measured_comm_ms(
    plans: Sequence[Plan], collectives: CollectiveSamples, comm_costs: pd.DataFrame, direction: str
) -> list[tuple[float, ...]]:
    """Cost of one direction ("forward" or "backward") per plan and rank; NaN if the measurement failed."""
    measured = comm_costs[comm_costs["error"].isna()]
    cost = dict(
        zip(zip(measured["sample_id"], measured["rank"], strict=True), measured[f"{direction}_ms"], strict=True)
    )
    return [
        tuple(cost.get((name, rank), np.nan) for rank in range(plan.task.world_size))
        for plan, name in zip(plans, collectives.sample_ids, strict=True)
    ]


def _rank_sample(shards: Sequence[Shard], batch_size: int, optimizer: str) -> ComputeSample:
    """The sample of a rank; its id is a hash of everything that the cost of the lookup depends on."""
    keyed = sorted(((_shard_key(shard), shard) for shard in shards), key=lambda pair: pair[0])
    text = "\n".join([str(batch_size), optimizer, *(key for key, _ in keyed)])
    return ComputeSample(f"rank-{_digest(text)}", batch_size, tuple(shard for _, shard in keyed), optimizer)


def _shard_key(shard: Shard) -> str:
    table = shard.table
    profile = (table.num_embeddings, table.pooling_factor, table.unique_rows, table.reuse, table.data_type)
    return repr((table.name, shard.embedding_dim, *profile))


def _collectives(plans: Sequence[Plan], skews: Sequence[tuple[float, ...] | None]) -> CollectiveSamples:
    samples: dict[str, CommSample] = {}
    sample_ids: list[str | None] = []
    for plan, skew_ms in zip(plans, skews, strict=True):
        if skew_ms is None:
            sample_ids.append(None)
            continue
        name = f"collective-{_digest(repr((plan.task.batch_size, plan.dim_sums, skew_ms)))}"
        samples.setdefault(name, CommSample(name, plan.task.batch_size, plan.dim_sums, skew_ms))
        sample_ids.append(name)
    return CollectiveSamples(list(samples.values()), sample_ids)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
