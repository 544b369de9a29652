"""Self-distillation with consistency regularisation: a network is also taught by what it said of another view before.

SMC-2 ("Self-discipline on multiple channels", arXiv 2304.14224: two channels), carried over from classification to
costs. Every batch passes through the network as two views, the channels: the features as they are, and with noise
added to the context. What a channel says of a sample is kept as a soft target; when the sample comes up again, each
channel is taught by the measured cost and by the other channel's soft target. A wrong label then pulls against what the
network makes of the sample's likes.

Shapes: E ensemble members, N all samples, n samples of a batch, D = 2 directions, V = 2 channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]
Weights = dict[str, Tensor]

_CHANNELS = 2


@dataclass(frozen=True)
class SelfDistillation:
    """The training loss of SMC-2; calling it remembers soft targets for the next epoch.

    Attributes:
        predict: `(weights, sample indices, noise of the context) -> (E, n, D)` ms.
        loss: `(predicted (E, n, D), target, weights) -> (E,)`.
        costs: (N, D) measured ms.
        weight: share of the loss that the soft targets have, from the second epoch on.
        view_noise: standard deviation of the second channel's noise, in units of the standardised context.
        soft: (V, E, N, D) what each channel last said of every sample; NaN before it was seen.
    """

    predict: Callable[[Weights, IntArray, float], Tensor]
    loss: Callable[[Tensor, Tensor, Weights], Tensor]
    costs: Tensor
    weight: float
    view_noise: float
    soft: Tensor

    @classmethod
    def start(
        cls,
        predict: Callable[[Weights, IntArray, float], Tensor],
        loss: Callable[[Tensor, Tensor, Weights], Tensor],
        costs: Tensor,
        members: int,
        weight: float,
        view_noise: float,
    ) -> SelfDistillation:
        """Before any sample was seen."""
        soft = torch.full((_CHANNELS, members, *costs.shape), torch.nan)
        return cls(predict, loss, costs, weight, view_noise, soft)

    def __call__(self, weights: Weights, rows: IntArray) -> Tensor:
        """(E,) loss of a batch, the mean of both channels."""
        predicted = [self.predict(weights, rows, noise) for noise in (0.0, self.view_noise)]
        losses = [self._of_channel(channel, says, weights, rows) for channel, says in enumerate(predicted)]
        for channel, says in enumerate(predicted):
            self.soft[channel][:, rows] = says.detach()
        return torch.stack(losses).mean(dim=0)

    def _of_channel(self, channel: int, predicted: Tensor, weights: Weights, rows: IntArray) -> Tensor:
        """Measured costs, and the other channel's soft targets where there are any."""
        measured = self.loss(predicted, self.costs[rows], weights)
        taught_by = self.soft[1 - channel][:, rows]
        if taught_by.isnan().any():  # the first epoch
            return measured
        return (1 - self.weight) * measured + self.weight * self.loss(predicted, taught_by, weights)
