"""A trained policy as a sharder."""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.packing import check_room_of, no_rank_for_every_table
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import require_column_wise
from neuroshard_pipeline.sharders.policies.episode import game_of
from neuroshard_pipeline.sharders.policies.policy import Policy


@dataclass(frozen=True)
class PolicySharder:
    """Places whole tables one after the other with a learned policy, which was not trained on the task.

    The first rollout always takes the rank with the highest score; the others draw ranks. The cheapest rollout wins.

    Attributes:
        policy: the trained policy.
        rollouts: number of rollouts.
    """

    policy: Policy
    rollouts: int

    @property
    def name(self) -> str:
        """The kind of the policy."""
        return self.policy.kind

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:
        """The placement of the best rollout.

        Raises:
            DoesNotFitError: the task does not fit, or every rollout reached a table for which no rank had room.
            ConstraintError: the constraints on a table do not allow `column_wise`.
        """
        require_column_wise(problem.task, self.name)
        check_room_of(problem)
        game = game_of(problem)
        played = self.policy.play(game, self.rollouts, rng)
        best = int(played.embedding_cost_ms.argmin())
        if not np.isfinite(played.embedding_cost_ms[best]):
            raise no_rank_for_every_table(problem, self.name, f"{self.rollouts} rollouts")
        return problem.placement(game.order, played.ranks[:, best])
