"""Placing whole tables one after the other, as a game that many rollouts play in lockstep.

Shapes: U units (tables), B rollouts, W ranks, H numbers of a shard embedding, F table features, K rank features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.cost_models.compute_features import CONTEXT_FEATURES, shard_features
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.simulator import COST_UNITS_PER_MS, FloatArray, IntArray, embedding_cost_ms
from neuroshard_pipeline.tables.table import whole

BoolArray = NDArray[np.bool_]

#: What a policy sees of a table: its context, and its share of a task.
TABLE_FEATURES: tuple[str, ...] = (*CONTEXT_FEATURES, "log_cost_share", "log_width_share", "bytes_share")

#: What a policy sees of a rank, all relative to the mean rank of the task, so that it holds for other tasks.
RANK_FEATURES: dict[str, str] = {
    "forward": "predicted forward compute of what lies there",
    "backward": "predicted backward compute",
    "forward_with": "predicted forward compute with the table that is to be placed",
    "backward_with": "predicted backward compute with it",
    "comm": "predicted backward communication of all ranks as they stand",
    "width_with": "columns with the table",
    "room_with": "share of the memory that would be left",
}


@dataclass(frozen=True)
class Game:
    """A sharding task as policies play it.

    Attributes:
        kinds: the task, the models and the memory.
        order: (U,) kinds in descending predicted cost of the table alone, the order in which they are placed.
        tables: (U, F) table features in that order, as in `TABLE_FEATURES`.
        rank_ms: predicted compute of a rank if single costs added up and were spread evenly.
        rank_width: columns of a rank if they were spread evenly.
    """

    kinds: ShardKinds
    order: IntArray
    tables: FloatArray
    rank_ms: float
    rank_width: float


def game_of(kinds: ShardKinds) -> Game:
    """The game of a task whose kinds are its whole tables."""
    order = kinds.in_placement_order(kinds.whole_tables)
    world_size = kinds.task.world_size
    cost_ms = kinds.cost[order] / COST_UNITS_PER_MS
    rank_ms = max(float(cost_ms.sum()) / world_size, 1e-9)
    rank_width = float(kinds.width[order].sum()) / world_size
    shares = [
        np.log(np.maximum(cost_ms / rank_ms, 1e-9)),
        np.log(kinds.width[order] / rank_width),
        kinds.bytes[order] / float(kinds.limits.max()),
    ]
    return Game(kinds, order, np.column_stack([_context(kinds)[order], *shares]), rank_ms, rank_width)


def _context(kinds: ShardKinds) -> FloatArray:
    """(U, F') context of every unit; of tables that are kept together, their mean."""
    task = kinds.task
    _, context = shard_features([whole(table) for table in task.tables], task.batch_size)
    return np.array([context[list(unit.members)].mean(axis=0) for unit in kinds.units])


class Episode:
    """Rollouts of a game, all at the same step.

    Attributes:
        game: what is played.
        alive: (B,) whether every table so far found a rank.
    """

    def __init__(self, game: Game, rollouts: int):
        kinds = game.kinds
        world_size = kinds.task.world_size
        self.game = game
        self.alive: BoolArray = np.ones(rollouts, dtype=bool)
        self._sums = np.zeros((rollouts, world_size, kinds.embedding.shape[1]))
        self._cost_ms = np.zeros((rollouts, world_size, 2))
        self._cost_with_ms = self._cost_ms
        self._width = np.zeros((rollouts, world_size), dtype=np.int64)
        self._free = np.tile(kinds.limits, (rollouts, 1))

    def look(self, step: int) -> tuple[FloatArray, BoolArray]:
        """What policies see before table `step` is placed.

        Returns:
            Rank features (B, W, K) as in `RANK_FEATURES`, and (B, W) where the table may go.
        """
        game, kinds, kind = self.game, self.game.kinds, self.game.order[step]
        batch_size = kinds.task.batch_size
        self._cost_with_ms = kinds.models.compute.costs_from_sums(self._sums + kinds.embedding[kind], batch_size)
        comm_ms = kinds.models.comm.backward_ms(self._width, batch_size)
        room = self._free - kinds.bytes[kind]
        columns = [
            self._cost_ms[..., 0] / game.rank_ms,
            self._cost_ms[..., 1] / game.rank_ms,
            self._cost_with_ms[..., 0] / game.rank_ms,
            self._cost_with_ms[..., 1] / game.rank_ms,
            comm_ms / game.rank_ms,
            (self._width + kinds.width[kind]) / game.rank_width,
            room / kinds.limits,
        ]
        allowed = room >= 0
        if kinds.rank_allowed is not None:
            allowed &= kinds.rank_allowed[kinds.table[kind]]
        return np.stack(columns, axis=-1), allowed

    def place(self, step: int, ranks: IntArray, allowed: BoolArray) -> None:
        """Put table `step` on `ranks` (B,); a rollout whose rank is not allowed is out."""
        kinds, kind = self.game.kinds, self.game.order[step]
        self.alive = self.alive & allowed[np.arange(len(ranks)), ranks]
        rows = np.flatnonzero(self.alive)
        cells = rows, ranks[rows]
        self._sums[cells] += kinds.embedding[kind]
        self._cost_ms[cells] = self._cost_with_ms[cells]
        self._width[cells] += kinds.width[kind]
        self._free[cells] -= kinds.bytes[kind]

    @property
    def compute_ms(self) -> FloatArray:
        """(B, W) predicted compute cost of every rank as it stands."""
        return self._cost_ms.sum(axis=-1)

    @property
    def embedding_cost_ms(self) -> FloatArray:
        """(B,) predicted embedding cost of finished plans; infinite for rollouts that are out."""
        task = self.game.kinds.task
        cost_ms = embedding_cost_ms(self.game.kinds.models, self.compute_ms, self._width, task.batch_size)
        return np.where(self.alive, cost_ms, np.inf)
