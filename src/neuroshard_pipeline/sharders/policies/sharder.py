"""A trained policy as a sharder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.sharders.policies.episode import game_of
from neuroshard_pipeline.sharders.policies.policy import Policy
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class PolicySharder:
    """Whole tables, placed one after the other by a learned policy that has never seen the task.

    The best of several rollouts by predicted embedding cost: one that follows the highest scores, the others drawn.

    Attributes:
        policy: trained, and not tuned to the task.
        rollouts: how many.
        memory: what counts against the memory of a rank.
    """

    policy: Policy
    rollouts: int
    memory: MemoryModel

    @property
    def name(self) -> str:
        """The policy's kind."""
        return self.policy.kind

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:
        """The plan of the best rollout.

        Raises:
            DoesNotFitError: in every rollout a table found no rank with room.
        """
        check_room(task, self.memory)
        kinds = ShardKinds(task, models, self.memory)
        game = game_of(kinds)
        played = self.policy.play(game, self.rollouts, rng)
        best = int(played.embedding_cost_ms.argmin())
        if not np.isfinite(played.embedding_cost_ms[best]):
            largest = int(kinds.bytes[game.order].argmax())
            raise DoesNotFitError(
                f"{task.task_id}: {self.name} found no rank for every table in {self.rollouts} rollouts; the largest, "
                f"{kinds.units[kinds.table[game.order[largest]]].name!r}, needs {kinds.bytes[game.order[largest]]} "
                f"bytes and the roomiest rank has {kinds.limits.max()}; use a sharder that splits tables, such as "
                "neuroshard, or raise memory_bytes"
            )
        return kinds.plan(game.order, played.ranks[:, best], self.name)
