"""Parameters of policy training; their values are in conf/<env>/parameters*.yml."""

from typing import Literal

from pydantic import Field

from neuroshard_pipeline.augment.drawing import TableLimits, WorldSizes
from neuroshard_pipeline.parameters import Parameters


class PolicyTrainParams(Parameters):
    """Parameters of the training of one policy.

    Attributes:
        reward: `cost`, the negative predicted embedding cost of a finished plan [Zha2022b], divided by that of the best
            greedy plan, or `balance`, the smallest predicted compute cost of a rank divided by the largest [Zha2022a].
        hidden: width of the networks.
        steps: number of updates of the weights.
        tasks_per_step: training tasks played per update.
        rollouts: rollouts per task and update; their mean reward is the baseline.
        learning_rate: initial learning rate of Adam; it falls to 0 linearly.
        entropy_bonus: initial weight of the policy's entropy in the loss; it falls to 0 linearly.
        validate_every: steps between validations; the weights with the best validation result are kept.
        seed: seed of the initial weights and of all draws.
    """

    reward: Literal["cost", "balance"]
    hidden: int = Field(ge=2, le=512)
    steps: int = Field(ge=1)
    tasks_per_step: int = Field(ge=1)
    rollouts: int = Field(ge=2)
    learning_rate: float = Field(gt=0, lt=1)
    entropy_bonus: float = Field(ge=0)
    validate_every: int = Field(ge=1)
    seed: int = Field(ge=0)


class PolicyTaskParams(TableLimits):
    """The tasks that policies are trained on: drawn like `augment.sharding_tasks`, but from another pool of tables.

    Attributes:
        pool_seed: seed of a pool that no other stage uses, so that the tables of evaluation tasks are unseen.
        world_sizes: numbers of ranks.
        tasks_per_world_size: number of tasks for each of `world_sizes`.
        validation_tasks: number of drawn tasks that are set aside; they decide which weights are kept.
        seed: seed of the draws of tasks.
    """

    pool_seed: int = Field(ge=0)
    world_sizes: WorldSizes
    tasks_per_world_size: int = Field(ge=1)
    validation_tasks: int = Field(ge=1)
    seed: int = Field(ge=0)
