"""The training loop, its inputs and its loss, for the compute and the communication cost model.

Shapes: E ensemble members, N samples, R rows of all samples (shards or ranks), P work terms, F context features.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models.measured import Split
from neuroshard_pipeline.cost_models.network import Normalisation
from neuroshard_pipeline.cost_models.params import FitParams
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.workers import WorkerParams, map_items

Part = TypeVar("Part")
Weights = dict[str, Tensor]
#: Weights of fitted members, float64.
Fit = dict[str, FloatArray]

#: `(weights, sample indices) -> (E,)` mean loss per member.
Loss = Callable[[Weights, IntArray], Tensor]

#: Weights that are constants: they say which features are launch terms (`compute.embed`).
_FIXED_WEIGHTS = frozenset({"once.terms"})

#: Share of the steps in which the learning rate rises to its peak.
_WARM_UP = 0.1


def fit(weights: Weights, loss: Loss, split: Split, params: FitParams, generator: torch.Generator, title: str) -> Fit:
    """Fit all members of an ensemble together; return each member's weights at its lowest validation loss.

    The first axis of the initial weights is that of the members. `generator` shuffles the training samples in every
    epoch, and `title` names the model in errors.

    Raises:
        CostModelError: a member has no finite validation loss in any epoch.
    """
    learned = {name: value.clone().requires_grad_(name not in _FIXED_WEIGHTS) for name, value in weights.items()}
    optimizer, schedule = _optimizer(learned, params, len(split.training))
    best = _Best(learned)
    for _ in range(params.epochs):
        for batch in _batches(split.training, params.batch_samples, generator):
            optimizer.zero_grad()
            # Members share no weights, so the sum gives each member the gradient of its loss.
            loss(learned, batch).sum().backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            best.update(learned, loss(learned, split.validation))
    if not np.all(np.isfinite(best.loss)):
        raise CostModelError(f"{title}: the loss is not a number; lower learning_rate (now {params.learning_rate})")
    return {name: value.numpy().astype(np.float64) for name, value in best.weights.items()}


def fitted(fit_part: Callable[[Part], Fit], parts: Sequence[Part], executor: WorkerParams | None) -> list[Fit]:
    """The fits of all parts, in their order. Workers fit several parts at a time; without them, this process fits all.

    Raises:
        CostModelError: a worker could not fit a part.
    """
    if executor is None:
        return [fit_part(part) for part in parts]
    outcomes = sorted(map_items(fit_part, parts, executor), key=attrgetter("index"))
    for outcome in outcomes:
        if outcome.value is None:
            raise CostModelError(f"a worker could not fit its part of a cost model: {outcome.error}")
    return [outcome.value for outcome in outcomes if outcome.value is not None]


class _Best:
    """The best weights so far, per member."""

    def __init__(self, weights: Weights) -> None:
        members = next(iter(weights.values())).shape[0]
        self.weights = {name: value.detach().clone() for name, value in weights.items()}
        self.loss = [float("inf")] * members

    def update(self, weights: Weights, losses: Tensor) -> None:
        for member, loss in enumerate(losses.tolist()):
            if loss < self.loss[member]:
                self.loss[member] = loss
                for name, value in weights.items():
                    self.weights[name][member] = value[member].detach()


def _optimizer(
    weights: Weights, params: FitParams, samples: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with a one-cycle schedule. Only weight matrices decay: prices and biases need not be near zero."""
    decayed = {name for name in weights if name.endswith("weight") and "log_" not in name}
    kept = [value for name, value in weights.items() if name not in decayed and value.requires_grad]
    groups = [
        {"params": [value for name, value in weights.items() if name in decayed], "weight_decay": params.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=params.learning_rate)
    steps = params.epochs * -(-samples // params.batch_samples)
    cycle = torch.optim.lr_scheduler.OneCycleLR
    return optimizer, cycle(optimizer, params.learning_rate, total_steps=max(steps, 2), pct_start=_WARM_UP)


def _batches(samples: IntArray, size: int, generator: torch.Generator) -> Iterator[IntArray]:
    """Batches of the samples in a new random order."""
    order = torch.randperm(len(samples), generator=generator).numpy()
    for start in range(0, len(samples), size):
        yield samples[order[start : start + size]]


class FeatureRows:
    """Scaled features of all samples (R,), and work (R, P). A sample has one row per shard (compute) or per rank.

    `counts` (N,) are the rows per sample; `in_training` (R,) says whether a row belongs to a training sample, whose
    rows give the normalisation.
    """

    def __init__(
        self, work: FloatArray, context: FloatArray, counts: IntArray, split: Split, unscaled: Sequence[int] = ()
    ) -> None:
        """Scale work (R, P) and context (R, F) by their statistics over training rows.

        The rows have the order of samples, and `counts` (N,) are the rows of each. The work terms with the indices
        `unscaled` are not scaled.
        """
        self.counts = counts
        self.in_training = np.repeat(np.isin(np.arange(len(counts)), split.training), counts)
        self.normalisation = Normalisation.fit(work[self.in_training], context[self.in_training], unscaled)
        self.work = self.normalisation.work(work)
        self._work = torch.tensor(self.work, dtype=torch.float32)
        self._context = torch.tensor(self.normalisation.context(context), dtype=torch.float32)
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def of(self, samples: IntArray) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (R',), work (R', P) and context (R', F) of the R' rows of `samples`, in the order of `samples`."""
        ranges = [np.arange(self._starts[sample], self._starts[sample + 1]) for sample in samples]
        rows = torch.from_numpy(np.concatenate(ranges))
        return rows, self._work[rows], self._context[rows]


def relative_loss(predicted: Tensor, measured: Tensor, small_error: float) -> Tensor:
    """Huber loss of |log predicted - log measured| of every cost, close to the relative error if that is small.

    At `small_error`, the loss is 0.5 and changes from quadratic to linear.
    """
    gap = torch.abs(torch.log(torch.clamp(predicted, min=1e-6)) - torch.log(measured)) / small_error
    return torch.where(gap < 1.0, 0.5 * gap * gap, gap - 0.5)
