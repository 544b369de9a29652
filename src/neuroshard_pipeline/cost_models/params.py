"""Parameters of training: one flat, frozen type per model; values are in conf/<env>/parameters*.yml."""

from pydantic import Field

from neuroshard_pipeline.parameters import Parameters


class FitParams(Parameters):
    """Parameters of the training loop, for the compute and the communication cost model.

    Attributes:
        members: number of networks in the ensemble; the prediction is the mean of theirs.
        hidden: width of the two hidden layers.
        epochs: number of passes over the training samples.
        batch_samples: number of samples per optimizer step.
        learning_rate: peak of the one-cycle schedule.
        weight_decay: decay of weight matrices (AdamW), per unit of learning rate.
        small_error: relative error below which the loss is quadratic, not linear. It should be about the noise floor,
            which is the relative difference between two measurements of a sample.
        validation_share: share of samples that select the best epoch and calibrate the prediction intervals.
        test_share: share of samples held out for the reported accuracy.
        seed: seed of the split, the initial weights and the order of batches.
    """

    members: int = Field(ge=1, le=64)
    hidden: int = Field(ge=4, le=1024)
    epochs: int = Field(ge=1)
    batch_samples: int = Field(ge=1)
    learning_rate: float = Field(gt=0, lt=1)
    weight_decay: float = Field(ge=0)
    small_error: float = Field(gt=0, lt=1)
    validation_share: float = Field(gt=0, lt=0.5)
    test_share: float = Field(gt=0, lt=0.5)
    seed: int = Field(ge=0)


class ComputeTrainParams(FitParams):
    """Training of the compute cost model.

    Attributes:
        gates: number of gated parts of the cost per direction; each is multiplied by the opening (0 to 1) of its gate.
        pressures: number of pressures, the quantities that open the gates; each is a sum over the shards of a rank.
    """

    gates: int = Field(ge=1, le=8)
    pressures: int = Field(ge=1, le=16)


class CommTrainParams(FitParams):
    """Training of the communication cost model: an ensemble for the forward and one for the backward all-to-all."""
