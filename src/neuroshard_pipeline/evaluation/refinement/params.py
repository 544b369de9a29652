"""Parameters of the refinement and of what judges it."""

from __future__ import annotations

from typing import Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks

#: The sharders that can name runners-up.
SearchingSharder = Literal["neuroshard", "neuroshard_plus"]


class DrawnTasks(BaseModel):
    """Which tasks are drawn; whatever is not said here is as in the sharding tasks of the augment stage.

    Attributes:
        tasks_per_world_size: how many tasks for each of that stage's world sizes.
        sharders: whose plans are looked at.
        compute_anchors: compute samples of the training set that every campaign measures once more.
        comm_anchors: communication samples likewise.
        seed: of the tasks; one that no other stage has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks_per_world_size: tuple[int, ...] = Field(min_length=1)
    sharders: tuple[SearchingSharder, ...] = Field(min_length=1)
    compute_anchors: int = Field(ge=0, le=10_000)
    comm_anchors: int = Field(ge=0, le=10_000)
    seed: int = Field(ge=0)

    def draw(self, pool: pd.DataFrame, like: ShardingTaskParams, prefix: str) -> pd.DataFrame:
        """Tasks as `like` has them, with ids that begin with `prefix`."""
        changes = {"tasks_per_world_size": self.tasks_per_world_size, "seed": self.seed}
        tasks = sharding_tasks(pool, ShardingTaskParams.model_validate(like.model_dump() | changes))
        return tasks.assign(task_id=prefix + tasks["task_id"])


class RefineParams(DrawnTasks):
    """Rounds of search → measure → add → retrain.

    Attributes:
        rounds: how many.
        plans_per_task: plans of every sharder and task that are looked at: the best one and its runners-up.
        max_compute_samples: new shard sets measured in a round, at most; those of the best plans come first.
        max_comm_samples: new collectives measured in a round, at most.
    """

    rounds: int = Field(ge=1, le=100)
    plans_per_task: int = Field(ge=1, le=10_000)
    max_compute_samples: int = Field(ge=1, le=1_000_000)
    max_comm_samples: int = Field(ge=1, le=1_000_000)


class JudgingParams(DrawnTasks):
    """The fresh tasks on which the cost models before and after are judged."""
