"""Parameters of policy training; values live in conf/<env>/parameters*.yml."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PolicyTrainParams(BaseModel):
    """How a policy is trained.

    Attributes:
        reward: `cost`, minus the predicted embedding cost of a finished plan [Zha2022b], or `balance`, the least
            over the largest predicted compute cost of its ranks [Zha2022a].
        hidden: width of the networks.
        steps: updates of the weights.
        tasks_per_step: training tasks played per update.
        rollouts: times that each of them is played; their mean reward is the baseline.
        learning_rate: of Adam at the start; it falls to 0 linearly.
        entropy_bonus: weight of the policy's entropy in the loss at the start; it falls to 0 linearly.
        validate_every: steps between validations; the weights that did best on validation are kept.
        seed: of the initial weights and all draws.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: Literal["cost", "balance"]
    hidden: int = Field(ge=2, le=512)
    steps: int = Field(ge=1)
    tasks_per_step: int = Field(ge=1)
    rollouts: int = Field(ge=2)
    learning_rate: float = Field(gt=0, lt=1)
    entropy_bonus: float = Field(ge=0)
    validate_every: int = Field(ge=1)
    seed: int = Field(ge=0)


class PolicyTaskParams(BaseModel):
    """The tasks that policies are trained on: drawn as `augment.sharding_tasks` are, from tables of their own.

    Attributes:
        pool_seed: of a pool that no other stage sees, so that tables of evaluation tasks are unseen.
        tasks_per_world_size: training tasks for each world size of `augment.sharding_tasks`.
        validation_tasks: how many of all tasks choose the weights instead.
        seed: of the draws of tasks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool_seed: int = Field(ge=0)
    tasks_per_world_size: int = Field(ge=1)
    validation_tasks: int = Field(ge=1)
    seed: int = Field(ge=0)
