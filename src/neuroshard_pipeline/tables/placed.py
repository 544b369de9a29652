"""The shards of a plan without repetitions: every distinct shard once, and how often each rank holds it.

A data-parallel table has one shard per rank, and all these shards are equal. The cost of a shard is therefore computed
once per distinct shard; a sparse matrix adds up the costs of the shards of every rank.

Shapes: S shards, D distinct shards, W ranks, N entries of the sparse matrix: pairs of rank and distinct shard.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csc_array

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.tables.table import Shard

Key = TypeVar("Key", bound=Hashable)

#: Largest number of products that are added without a sparse matrix, which takes 0.1 ms to make.
_FEW_PRODUCTS = 1000


@dataclass(frozen=True)
class PlacedShards:
    """The distinct shards of one plan that W ranks hold, in the order of their first occurrence.

    Entry i says that `rank[i]` holds the shard `number[i]`, `count[i]` times, (N,); numbers ascend, then ranks.
    """

    shards: list[Shard]
    world_size: int
    number: IntArray
    rank: IntArray
    count: IntArray
    _keys: dict[object, tuple[list[Any], IntArray]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _parts: dict[object, dict[Any, "PlacedShards"]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def times(self) -> FloatArray:
        """(D,) how often all ranks together hold each shard."""
        return np.bincount(self.number, self.count, len(self.shards)).astype(float)

    def per_rank(self, values: np.ndarray) -> np.ndarray:
        """(W, ...) sum of the `values` (D, ...) of the shards that each rank holds; integers stay exact."""
        if len(self.number) * values[:1].size > _FEW_PRODUCTS:
            return np.asarray(self._matrix @ values)
        products = self.count.reshape(-1, *[1] * (values.ndim - 1)) * values[self.number]
        sums = np.zeros((self.world_size, *values.shape[1:]), dtype=products.dtype)
        np.add.at(sums, self.rank, products)
        return sums

    def keys(self, key_of: Callable[[Shard], Key]) -> tuple[list[Key], IntArray]:
        """The keys of the shards, in the order of their first shards, and the index of every shard's key, (D,)."""
        if key_of not in self._keys:
            keys: dict[Key, int] = {}
            index = np.array([keys.setdefault(key_of(shard), len(keys)) for shard in self.shards], dtype=np.int64)
            self._keys[key_of] = list(keys), index
        return self._keys[key_of]

    def by(self, key_of: Callable[[Shard], Key]) -> dict[Key, "PlacedShards"]:
        """The shards by a key."""
        keys, index = self.keys(key_of)
        if len(keys) > 1 and key_of not in self._parts:
            self._parts[key_of] = {key: self._part(index == at) for at, key in enumerate(keys)}
        return self._parts.get(key_of) or dict.fromkeys(keys, self)

    def _part(self, is_member: BoolArray) -> "PlacedShards":
        """The part with the distinct shards whose entry in `is_member` (D,) is true."""
        entry = is_member[self.number]
        number = (np.cumsum(is_member) - 1)[self.number[entry]]
        shards = [self.shards[index] for index in is_member.nonzero()[0].tolist()]
        return PlacedShards(shards, self.world_size, number, self.rank[entry], self.count[entry])

    @cached_property
    def _matrix(self) -> csc_array:
        starts = np.searchsorted(self.number, np.arange(len(self.shards) + 1))
        return csc_array((self.count, self.rank, starts), (self.world_size, len(self.shards)))


def placed_shards(shards: Sequence[Shard], ranks: Sequence[int], world_size: int) -> PlacedShards:
    """The distinct shards of a plan with `shards[i]` on `ranks[i]`."""
    unlike, place = distinct_shards(shards)
    entries, count = np.unique(place * world_size + np.asarray(ranks, dtype=np.int64), return_counts=True)
    return PlacedShards(unlike, world_size, entries // world_size, entries % world_size, count)


def distinct_shards(shards: Sequence[Shard]) -> tuple[list[Shard], IntArray]:
    """The distinct shards of a plan, and for each shard the index of the distinct shard that equals it, (S,).

    Shards of a table are equal if they have the same type and size, wherever they begin. Equal shards cost the same.
    """
    ids = list(map(id, shards))  # replicas of a table are one object
    number, of_id, distinct = dict[tuple[object, ...], int](), dict[int, int](), list[Shard]()
    for each, shard in dict(zip(ids, shards, strict=True)).items():
        key = (id(shard.table), shard.embedding_dim, shard.num_rows, shard.sharding_type)
        of_id[each] = number.setdefault(key, len(number))
        if of_id[each] == len(distinct):
            distinct.append(shard)
    return distinct, np.array(list(map(of_id.__getitem__, ids)), dtype=np.int64)
