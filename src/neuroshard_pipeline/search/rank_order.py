"""Assigns the ranks of a plan to physical ranks whose links differ; after Luo et al., "Cloud Collectives", 2021.

The cost models assume that all links inside hosts are equal, and that all links between hosts are equal. If they are
not, the order of the ranks changes the real cost of the collectives. A byte from rank p to rank q takes
`ms_per_byte[p, q]`. In the forward collective, a rank with d columns sends `4 * batch_size / W * d` bytes to every
other rank. In the backward collective, it receives the same number of bytes from every other rank. A rank sends and
receives at the same time, one message after the other in each direction. A collective ends when the slowest rank ends.

Shapes: W ranks, S candidate swaps.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard

_BYTES_PER_NUMBER = 4  # every column counts like a column of a pooled column-wise table in fp32

_MS_PER_BYTE_AT_1_GB_PER_S = 1e-6

#: Weight of the mean time over ranks in `_score`; the mean decides between orders with equal times of the slowest rank.
_MEAN_WEIGHT = 1e-6


def ms_per_byte_of(gb_per_s: ArrayLike, world_size: int) -> FloatArray:
    """(W, W) ms per byte between ranks, from bandwidths in GB/s (10**9 bytes per second); 0 on the diagonal.

    Raises:
        PlanError: the matrix is not (W, W), or a bandwidth outside its diagonal is not a number above 0.
    """
    try:
        links = np.array(gb_per_s, dtype=float)
    except (TypeError, ValueError) as error:
        raise PlanError(f"gb_per_s {gb_per_s!r:.60} must be a matrix of numbers, one row per rank") from error
    if links.shape != (world_size, world_size):
        raise PlanError(f"gb_per_s has shape {links.shape}, but {world_size} ranks need ({world_size}, {world_size})")
    np.fill_diagonal(links, np.inf)
    for sender, receiver in np.argwhere(~(links > 0)):
        value = links[sender, receiver]
        raise PlanError(f"gb_per_s from rank {sender} to rank {receiver} is {value:g}; give GB/s above 0, such as 48.5")
    return _MS_PER_BYTE_AT_1_GB_PER_S / links


def collectives_ms(dim_sums: ArrayLike, cost: FloatArray, batch_size: int) -> float:
    """Ms of the forward plus the backward collective, with `dim_sums` (W,) columns on every physical rank.

    `cost` (W, W) are the ms per byte from the row's rank to the column's rank; 0 on the diagonal.
    """
    dims = np.asarray(dim_sums, dtype=float)
    return float(_slowest(_rank_ms(dims[None], cost))[0]) * _BYTES_PER_NUMBER * batch_size / len(dims)


def order_text(before: Plan, after: Plan, cost: FloatArray) -> str:
    """One line that states what the new order of ranks gains on these links."""
    old_ms, new_ms = (collectives_ms(plan.dim_sums, cost, plan.task.batch_size) for plan in (before, after))
    if before.ranks == after.ranks:
        return f"links: no better order of the ranks was found; both collectives take {old_ms:.4g} ms together"
    moved = sum(old != new for old, new in zip(before.ranks, after.ranks, strict=True))
    return (
        f"links: {moved} shards went to other ranks, so that both collectives take {new_ms:.4g} instead of "
        f"{old_ms:.4g} ms together"
    )


def order_ranks(plan: Plan, cost: FloatArray) -> Plan:
    """Reorder the ranks of a plan so that the collectives cost less; column-wise shards of one rank stay together.

    Shards of all other sharding types stay on their ranks: TorchRec finds row shards by the number of their rank.
    Pairs of ranks are swapped as long as that lowers the cost. The swaps start from the given order and, if limits and
    constraints allow it, from the order in which the ranks with the most columns have the cheapest links; the cheaper
    result is returned. The result is deterministic, costs no more than the given order, and keeps memory limits and
    constraints. It has no predicted cost; `price.priced` adds one.

    Args:
        plan: any plan.
        cost: (W, W) ms per byte from the row's rank to the column's rank, for example from `ms_per_byte_of`.
    """
    world_size = plan.task.world_size
    moving = [[shard for shard in shards if _moves(shard)] for shards in plan.shards_by_rank]
    dims = np.array([sum(shard.embedding_dim for shard in shards) for shards in moving], dtype=float)
    staying = np.array(plan.dim_sums) - dims
    allowed = _allowed(plan, moving)
    identity = np.arange(world_size)
    starts = [identity]
    by_size = np.empty(world_size, dtype=np.int64)
    by_size[np.argsort(cost.sum(axis=1), kind="stable")] = np.argsort(-dims, kind="stable")
    if allowed[by_size, identity].all():
        starts.append(by_size)
    orders = [_swapped(start, dims, staying, cost, allowed) for start in starts]
    best = min([identity, *orders], key=lambda order: float(_score((staying + dims[order])[None], cost)[0]))
    return _renamed(plan, best)


def _rank_ms(dims: FloatArray, cost: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(S, W) time of each rank in the forward and in the backward collective if a message has one byte per column."""
    forward = np.maximum(dims * cost.sum(axis=1), dims @ cost)
    backward = np.maximum(dims * cost.sum(axis=0), dims @ cost.T)
    return forward, backward


def _slowest(rank_ms: tuple[FloatArray, FloatArray]) -> FloatArray:
    return rank_ms[0].max(axis=-1) + rank_ms[1].max(axis=-1)


def _score(dims: FloatArray, cost: FloatArray) -> FloatArray:
    """(S,) number to minimise: sum of the times of both collectives' slowest ranks, plus a small share of the means."""
    forward, backward = _rank_ms(dims, cost)
    return _slowest((forward, backward)) + _MEAN_WEIGHT * (forward.mean(axis=-1) + backward.mean(axis=-1))


def _moves(shard: Shard) -> bool:
    return shard.sharding_type == "column_wise"


def _swapped(order: IntArray, dims: FloatArray, staying: FloatArray, cost: FloatArray, allowed: BoolArray) -> IntArray:
    """Swap pairs of ranks until no swap helps; `order[p]` is the rank whose column-wise shards are on physical rank p.

    A rank has `dims` columns in shards that move with it. A physical rank has `staying` columns in the other shards.
    """
    order, best = order.copy(), float(_score((staying + dims[order])[None], cost)[0])
    improved = True
    while improved:
        improved = False
        for rank in range(len(order)):
            others = np.flatnonzero(allowed[order[rank]] & allowed[order, rank] & (dims[order] != dims[order[rank]]))
            if not len(others):
                continue
            tried = np.repeat(order[None], len(others), axis=0)  # (S, W)
            tried[np.arange(len(others)), others] = order[rank]
            tried[:, rank] = order[others]
            scores = _score(staying + dims[tried], cost)
            if scores.min() < best * (1.0 - 1e-12):
                order, best, improved = tried[int(scores.argmin())], float(scores.min()), True
    return order


def _allowed(plan: Plan, moving: Sequence[Sequence[Shard]]) -> BoolArray:
    """(W, W) whether the shards `moving[v]` of rank v may replace those of physical rank p."""
    task, memory = plan.task, plan.memory
    gpu = np.array([memory.rank_bytes(shards, task) for shards in moving])
    host = np.array([sum(memory.host_bytes(shard, task) for shard in shards) for shards in moving])
    allowed = gpu[:, None] - gpu <= np.array(memory.limits(task)) - plan.memory_bytes
    allowed &= host[:, None] - host <= (task.host_memory_bytes or 0) - np.array(plan.host_memory_bytes)
    if task.constraints:
        ranks = np.arange(task.world_size)
        for rank, shards in enumerate(moving):
            for shard in shards:
                allowed[rank] &= np.isin(ranks, task.constraints.of(shard.table.name).allowed_ranks(task.world_size))
    return allowed


def _renamed(plan: Plan, order: IntArray) -> Plan:
    """`plan` with the column-wise shards of rank `order[p]` on rank p."""
    physical = np.argsort(order).tolist()
    placed = zip(plan.shards, plan.ranks, strict=True)
    ranks = tuple(physical[rank] if _moves(shard) else rank for shard, rank in placed)
    return Plan(plan.task, plan.shards, ranks, plan.sharder, memory=plan.memory)
