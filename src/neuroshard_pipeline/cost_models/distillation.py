"""Self-distillation with consistency regularisation, an option for noisy measurements.

The method is SMC-2 ("Self-discipline on multiple channels", arXiv 2304.14224, with two channels), transferred from
classification to costs. Every batch passes through the network twice, in two channels: unchanged in the first one,
and with noise added to the context (the inputs that describe the shards) in the second one. The prediction of each
channel is stored as a soft target. In the next epoch, the loss of a channel is a weighted mean of its errors against
the measured cost and against the other channel's soft target. A wrong measurement therefore has less influence.

Shapes: E ensemble members, N samples (for training or not), n samples of one batch, D = 2 directions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from neuroshard_pipeline.arrays import IntArray

Weights = dict[str, Tensor]


class SelfDistillation:
    """The training loss of SMC-2, which stores soft targets whenever it is called."""

    def __init__(
        self,
        predict: Callable[[Weights, IntArray, float], Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        costs: Tensor,
        members: int,
        weight: float,
        view_noise: float,
    ) -> None:
        """Start without soft targets.

        Args:
            predict: `(weights, sample indices, standard deviation of the noise) -> (E, n, D)` predicted ms.
            loss: `(predicted (E, n, D), target) -> (E,)`.
            costs: (N, D) measured ms.
            members: E.
            weight: weight of the soft targets in the loss from the second epoch on, between 0 and 1.
            view_noise: standard deviation of the second channel's noise, in units of the standardised context.
        """
        self._predict, self._loss, self._costs, self._weight = predict, loss, costs, weight
        self._noises = (0.0, view_noise)
        self.soft = torch.full((2, members, *costs.shape), torch.nan)  # (channel, E, N, D)

    def __call__(self, weights: Weights, samples: IntArray) -> Tensor:
        """(E,) loss of the batch `samples`, averaged over both channels; the predictions are stored as soft targets."""
        predicted = [self._predict(weights, samples, noise) for noise in self._noises]
        losses = []
        for channel, own in enumerate(predicted):
            measured, target = self._loss(own, self._costs[samples]), self.soft[1 - channel][:, samples]
            in_first_epoch = bool(target.isnan().any())
            softened = (1 - self._weight) * measured + self._weight * self._loss(own, target)
            losses.append(measured if in_first_epoch else softened)
        for channel, own in enumerate(predicted):
            self.soft[channel][:, samples] = own.detach()
        return torch.stack(losses).mean(dim=0)
