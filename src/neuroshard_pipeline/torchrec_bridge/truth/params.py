"""Parameters of the stage `truth`."""

from pydantic import Field, PositiveInt

from neuroshard_pipeline.torchrec_bridge.ranks import RankParams


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
