"""The training loop: one, visible, and the same for every network.

Shapes: E ensemble members, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from neuroshard_pipeline.cost_models.params import FitParams
from neuroshard_pipeline.errors import CostModelError

IntArray = NDArray[np.int64]

#: Buffers that describe the data rather than being learned.
FIXED_WEIGHTS = frozenset({"cost_scale", "cost_mean", "once.terms"})

#: Share of the steps in which the learning rate rises to its peak.
_WARM_UP = 0.1


@dataclass(frozen=True)
class Fit:
    """Outcome of `fit`.

    Attributes:
        weights: of every member at its best epoch, float64.
        best_epoch: per member.
        validation_loss: per member, at its best epoch.
        epochs: passes over the training samples until early stopping.
    """

    weights: dict[str, NDArray[np.float64]]
    best_epoch: list[int]
    validation_loss: list[float]
    epochs: int


def fit(
    weights: dict[str, Tensor],
    loss_of: Callable[[dict[str, Tensor], IntArray], Tensor],
    training: IntArray,
    validation: IntArray,
    params: FitParams,
    generator: torch.Generator,
    title: str,
    training_loss_of: Callable[[dict[str, Tensor], IntArray], Tensor] | None = None,
) -> Fit:
    """Fit all members of an ensemble side by side; keep each one's best epoch on validation.

    Args:
        weights: initial weights, members first.
        loss_of: `(weights, sample indices) -> (E,)` mean loss per member.
        training: indices of training samples.
        validation: indices of validation samples.
        params: schedule.
        generator: draws the order of batches.
        title: of the progress bar, which shows only on a terminal.
        training_loss_of: what is minimised, if not `loss_of`, which always judges the validation samples.

    Raises:
        CostModelError: the loss stopped being a number.
    """
    learned = {name: value.clone().requires_grad_(name not in FIXED_WEIGHTS) for name, value in weights.items()}
    optimizer = _optimizer(learned, params)
    steps = params.epochs * -(-len(training) // params.batch_samples)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, params.learning_rate, total_steps=max(steps, 2), pct_start=_WARM_UP
    )
    best = _Best(learned)
    minimised = training_loss_of or loss_of
    bar = tqdm(range(params.epochs), desc=title, unit="epoch", disable=None, leave=False)
    for epoch in bar:
        for batch in _batches(training, params.batch_samples, generator):
            loss = minimised(learned, batch).sum()  # members are independent: the gradient of a sum serves them all
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            best.update(epoch, learned, loss_of(learned, validation))
        bar.set_postfix(validation=f"{min(best.loss):.4f}")
        if epoch - max(best.epoch) >= params.patience:
            break
    if not np.all(np.isfinite(best.loss)):
        raise CostModelError(f"{title}: the loss is not a number; lower learning_rate (now {params.learning_rate})")
    return Fit(best.arrays(), best.epoch, best.loss, epoch + 1)


class _Best:
    """The best weights so far, per member."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        members = next(iter(weights.values())).shape[0]
        self.weights = {name: value.detach().clone() for name, value in weights.items()}
        self.loss = [float("inf")] * members
        self.epoch = [0] * members

    def update(self, epoch: int, weights: dict[str, Tensor], losses: Tensor) -> None:
        for member, loss in enumerate(losses.tolist()):
            if loss < self.loss[member]:
                self.loss[member], self.epoch[member] = loss, epoch
                for name, value in weights.items():
                    self.weights[name][member] = value[member].detach()

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        return {name: value.numpy().astype(np.float64) for name, value in self.weights.items()}


def _optimizer(weights: dict[str, Tensor], params: FitParams) -> torch.optim.Optimizer:
    """AdamW that decays weight matrices alone: prices and biases have no reason to be near zero."""
    decayed = [value for name, value in weights.items() if name.endswith("weight") and "log_" not in name]
    kept = [
        value for name, value in weights.items() if not any(value is other for other in decayed) and value.requires_grad
    ]
    groups = [{"params": decayed, "weight_decay": params.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=params.learning_rate)


def _batches(samples: IntArray, size: int, generator: torch.Generator) -> Iterator[IntArray]:
    """Batches of a fresh random order."""
    order = torch.randperm(len(samples), generator=generator).numpy()
    for start in range(0, len(samples), size):
        yield samples[order[start : start + size]]


def relative_loss(predicted: Tensor, measured: Tensor, small_error: float) -> Tensor:
    """Smooth absolute error of logarithms: relative error, and outliers of the measurement count only linearly.

    Both in ms, of one shape; returns that shape. In units of `small_error`, so that losses of 1 mean the noise.
    """
    gap = torch.abs(torch.log(torch.clamp(predicted, min=1e-6)) - torch.log(measured)) / small_error
    return torch.where(gap < 1.0, 0.5 * gap * gap, gap - 0.5)
