"""Places whole tables one after the other, as a game; many rollouts place the same table at the same time.

Shapes: U units (tables), B rollouts, W ranks, H numbers that describe a shard's cost (shard embedding), F table
features, K rank features.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.cost_models.compute_features import CONTEXT_FEATURES, shard_features
from neuroshard_pipeline.search.column_costs import embedding_cost_ms
from neuroshard_pipeline.search.models import COST_UNITS_PER_MS
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.table import whole

#: Features of a table: context features, cost and width relative to the mean over ranks, and share of a rank's memory.
TABLE_FEATURES: tuple[str, ...] = (*CONTEXT_FEATURES, "log_cost_share", "log_width_share", "bytes_share")

#: Features of a rank. Costs and columns are relative to the mean over ranks, so that a policy suits other tasks, too.
RANK_FEATURES: dict[str, str] = {
    "forward": "predicted forward compute of the tables on the rank",
    "backward": "predicted backward compute",
    "forward_with": "predicted forward compute with the table that is placed next",
    "backward_with": "predicted backward compute with this table",
    "comm": "predicted backward communication with the tables placed so far",
    "width_with": "columns with this table",
    "room_with": "share of the memory left with this table",
}


@dataclass(frozen=True)
class Game:
    """A sharding problem, prepared for policies.

    Attributes:
        problem: the task, the models and the memory.
        order: (U,) the units in the order of their placement, by descending predicted cost of the unit alone. A unit is
            given by the number that the problem gives to its uncut shard (`Problem.whole_tables`).
        tables: (U, F) table features in that order, as in `TABLE_FEATURES`.
        rank_ms: sum of the predicted costs of the tables, each alone on a rank, divided by the number of ranks.
        rank_width: sum of the tables' columns, divided by the number of ranks.
    """

    problem: Problem
    order: IntArray
    tables: FloatArray
    rank_ms: float
    rank_width: float


def game_of(problem: Problem) -> Game:
    """The game of placing the whole tables of a problem."""
    order = problem.in_placement_order(problem.whole_tables)
    world_size = problem.task.world_size
    cost_ms = problem.cost[order] / COST_UNITS_PER_MS
    rank_ms = max(float(cost_ms.sum()) / world_size, 1e-9)
    rank_width = float(problem.width[order].sum()) / world_size
    shares = [
        np.log(np.maximum(cost_ms / rank_ms, 1e-9)),
        np.log(problem.width[order] / rank_width),
        problem.bytes[order] / float(problem.limits.max()),
    ]
    return Game(problem, order, np.column_stack([_context(problem)[order], *shares]), rank_ms, rank_width)


def _context(problem: Problem) -> FloatArray:
    """(U, F') context features of every unit; the mean over the tables that are kept together."""
    task = problem.task
    _, context = shard_features([whole(table) for table in task.tables], task.batch_size)
    return np.array([context[list(unit.members)].mean(axis=0) for unit in problem.units])


class Episode:
    """Rollouts of a game, all at the same step.

    Attributes:
        game: the game that is played.
        alive: (B,) whether every table so far was placed on an allowed rank.
    """

    def __init__(self, game: Game, rollouts: int):
        problem = game.problem
        world_size = problem.task.world_size
        self.game = game
        self.alive: BoolArray = np.ones(rollouts, dtype=bool)
        self._sums = np.zeros((rollouts, world_size, problem.embedding.shape[1]))
        self._cost_ms = np.zeros((rollouts, world_size, 2))
        self._cost_with_ms = self._cost_ms
        self._width = np.zeros((rollouts, world_size), dtype=np.int64)
        self._free = np.tile(problem.limits, (rollouts, 1))

    def observe(self, step: int) -> tuple[FloatArray, BoolArray]:
        """Observation before table `step` is placed.

        Returns:
            Rank features (B, W, K) as in `RANK_FEATURES`, and (B, W) whether the table may be placed on a rank.
        """
        game, problem, kind = self.game, self.game.problem, self.game.order[step]
        batch_size = problem.task.batch_size
        self._cost_with_ms = problem.models.compute.costs_from_sums(self._sums + problem.embedding[kind], batch_size)
        comm_ms = problem.models.comm.backward_ms(self._width, batch_size)
        room = self._free - problem.bytes[kind]
        columns = [
            self._cost_ms[..., 0] / game.rank_ms,
            self._cost_ms[..., 1] / game.rank_ms,
            self._cost_with_ms[..., 0] / game.rank_ms,
            self._cost_with_ms[..., 1] / game.rank_ms,
            comm_ms / game.rank_ms,
            (self._width + problem.width[kind]) / game.rank_width,
            room / problem.limits,
        ]
        allowed = room >= 0
        if problem.rank_allowed is not None:
            allowed &= problem.rank_allowed[problem.unit[kind]]
        return np.stack(columns, axis=-1), allowed

    def place(self, step: int, ranks: IntArray, allowed: BoolArray) -> None:
        """Put table `step` on `ranks` (B,); a rollout whose rank is not allowed ends."""
        problem, kind = self.game.problem, self.game.order[step]
        self.alive = self.alive & allowed[np.arange(len(ranks)), ranks]
        rows = np.flatnonzero(self.alive)
        cells = rows, ranks[rows]
        self._sums[cells] += problem.embedding[kind]
        self._cost_ms[cells] = self._cost_with_ms[cells]
        self._width[cells] += problem.width[kind]
        self._free[cells] -= problem.bytes[kind]

    @property
    def compute_ms(self) -> FloatArray:
        """(B, W) predicted compute cost of every rank with the tables placed so far."""
        return self._cost_ms.sum(axis=-1)

    @property
    def embedding_cost_ms(self) -> FloatArray:
        """(B,) predicted embedding cost of finished placements; infinite for rollouts that ended early."""
        task = self.game.problem.task
        cost_ms = embedding_cost_ms(self.game.problem.models, self.compute_ms, self._width, task.batch_size)
        return np.where(self.alive, cost_ms, np.inf)
