"""Parameters of the pipeline `truth`, and of the timed steps of the measure stage (`StepParams`)."""

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from neuroshard_pipeline.augment.drawing import WorldSize
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.sharders.registry import SharderName
from neuroshard_pipeline.torchrec_bridge.ranks import RankParams


class TruthTaskParams(Parameters):
    """The sharding tasks whose plans are measured, drawn like those of `augment.sharding_tasks`.

    Attributes:
        world_size: number of ranks, one process each, all on this host.
        drawn_for_ranks: number of ranks that the tasks are drawn for, a multiple of `world_size`. Their memory is
            divided equally among the `world_size` ranks.
        num_tasks: number of tasks.
        variants_of: a sharder whose plans are also measured with replicas and row shards; null measures no variants.
    """

    world_size: WorldSize
    drawn_for_ranks: WorldSize
    num_tasks: PositiveInt
    variants_of: SharderName | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.drawn_for_ranks % self.world_size:
            raise ValueError(
                f"drawn_for_ranks {self.drawn_for_ranks} must be a multiple of world_size {self.world_size}"
            )
        return self


class StepParams(RankParams):
    """How steps of TorchRec's embedding module are timed.

    Attributes:
        learning_rate: learning rate of the tables.
        num_batches: number of distinct global batches of a task, which are used in a cycle.
        rounds: number of rounds; in each round every plan has one turn, in a new random order.
        warmup_steps: steps at the start of every turn that are not timed.
        steps_per_round: steps of every turn that are timed.
        most_plans_held: largest number of plans whose modules the ranks hold at the same time. Plans of one task that
            are held at the same time alternate.
        seed: seed of the order of turns and of drawn batches.
    """

    learning_rate: float = Field(gt=0)
    num_batches: PositiveInt
    rounds: PositiveInt
    warmup_steps: int = Field(ge=0)
    steps_per_round: PositiveInt
    most_plans_held: PositiveInt
    seed: int = Field(ge=0)


class TruthStepParams(StepParams):
    """How the steps of sharders' plans are timed and compared.

    Attributes:
        rounds: at least 2, because the costs in even and in odd rounds are compared.
        quantile: the quantile of a plan's timed steps that counts as its cost. Cost models are fitted to lower
            quartiles, 0.25; other programs on the same cores disturb a low quantile less than the median, 0.5.
    """

    rounds: int = Field(ge=2)
    quantile: float = Field(ge=0, le=1)
