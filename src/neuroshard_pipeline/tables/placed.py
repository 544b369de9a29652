"""The shards of a plan without repetitions: every distinct shard once, and how often each rank holds it.

A data-parallel table has one shard per rank, and all these shards are equal. The cost of a shard is therefore computed
once per distinct shard; a sparse matrix adds up the costs of the shards of every rank.

Shapes: S shards, D distinct shards, W ranks.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.sparse import csc_array

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.tables.table import Shard

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class PlacedShards:
    """Shards of one plan that ranks hold.

    Attributes:
        shards: the distinct shards, in the order of their first occurrence.
        counts: (W, D) how often each rank holds each of them.
    """

    shards: list[Shard]
    counts: csc_array

    @property
    def times(self) -> IntArray:
        """(D,) how often all ranks together hold each shard."""
        return np.asarray(self.counts.sum(axis=0), dtype=np.int64)

    def per_rank(self, values: np.ndarray) -> np.ndarray:
        """(W, ...) for every rank, the sum of the `values` (D, ...) of the shards it holds; integers stay exact."""
        return np.asarray(self.counts @ values)

    def by(self, key_of: Callable[[Shard], Key]) -> dict[Key, "PlacedShards"]:
        """The shards by a key; the keys are in the order of their first shards."""
        members: dict[Key, list[int]] = {}
        for number, shard in enumerate(self.shards):
            members.setdefault(key_of(shard), []).append(number)
        return {
            key: PlacedShards([self.shards[number] for number in of_key], self.counts[:, of_key])
            for key, of_key in members.items()
        }


def placed_shards(shards: Sequence[Shard], ranks: Sequence[int], world_size: int) -> PlacedShards:
    """The distinct ones of `shards`, where `shards[i]` lies on `ranks[i]`."""
    distinct, place = distinct_shards(shards)
    ones = np.ones(len(place), dtype=np.int64)
    where = np.asarray(ranks, dtype=np.int64), place
    return PlacedShards(distinct, csc_array((ones, where), shape=(world_size, len(distinct))))


def distinct_shards(shards: Sequence[Shard]) -> tuple[list[Shard], IntArray]:
    """The distinct shards of a plan, and for each shard, (S,), the index of the distinct shard that equals it.

    Shards of a table are equal if they have the same type and size, wherever they begin. Equal shards cost the same.
    """
    identities = np.fromiter(map(id, shards), dtype=np.int64, count=len(shards))
    _, first, same = np.unique(identities, return_index=True, return_inverse=True)
    number: dict[tuple[object, ...], int] = {}
    distinct: list[Shard] = []
    place = np.empty(len(first), dtype=np.int64)
    for index in np.argsort(first).tolist():
        shard = shards[first[index]]
        key = (id(shard.table), shard.embedding_dim, shard.num_rows, shard.sharding_type)
        place[index] = number.setdefault(key, len(number))
        if len(number) > len(distinct):
            distinct.append(shard)
    return distinct, place[same]
