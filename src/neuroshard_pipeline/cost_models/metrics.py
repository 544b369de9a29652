"""How far predictions are from measurements; every number of `train.metrics` is computed here."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.errors import CostModelError

FloatArray = NDArray[np.float64]


def mape(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute error as a share of the measured cost."""
    return float(np.mean(_absolute_share(measured, predicted)))


def median_ape(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Median absolute error as a share of the measured cost."""
    return float(np.median(_absolute_share(measured, predicted)))


def bias(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean signed error as a share of the measured cost; negative where the model is too cheap."""
    truth, guess = _pair(measured, predicted)
    return float(np.mean(guess / truth - 1.0))


def r2(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Coefficient of determination in ms; NaN where all measured costs are equal."""
    truth, guess = _pair(measured, predicted)
    total = np.sum((truth - truth.mean()) ** 2)
    return float(1.0 - np.sum((truth - guess) ** 2) / total) if total > 0 else float("nan")


def kendall_tau(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Kendall's tau-b: how well the order of costs is kept, 1 is perfect; NaN where either side is constant.

    Compares all pairs, one row at a time: O(n^2) time, O(n) memory.
    """
    truth, guess = _pair(measured, predicted)
    agreement = truth_pairs = guess_pairs = 0.0
    for row in range(len(truth) - 1):
        truth_sign = np.sign(truth[row + 1 :] - truth[row])
        guess_sign = np.sign(guess[row + 1 :] - guess[row])
        agreement += float(truth_sign @ guess_sign)
        truth_pairs += float(np.count_nonzero(truth_sign))
        guess_pairs += float(np.count_nonzero(guess_sign))
    untied = np.sqrt(truth_pairs * guess_pairs)
    return agreement / float(untied) if untied > 0 else float("nan")


def accuracy(measured: ArrayLike, predicted: ArrayLike, noise_floor: float | None) -> dict[str, float | None]:
    """The figures that every model reports.

    Args:
        measured: costs in ms, all above 0.
        predicted: costs in ms, same shape.
        noise_floor: median relative spread of repeated measurements, or None where it was not determined.
    """
    return {
        "mape": mape(measured, predicted),
        "median_ape": median_ape(measured, predicted),
        "bias": bias(measured, predicted),
        "r2": r2(measured, predicted),
        "kendall_tau": kendall_tau(measured, predicted),
        "noise_floor": noise_floor,
    }


def _absolute_share(measured: ArrayLike, predicted: ArrayLike) -> FloatArray:
    truth, guess = _pair(measured, predicted)
    return np.abs(guess - truth) / truth


def _pair(measured: ArrayLike, predicted: ArrayLike) -> tuple[FloatArray, FloatArray]:
    truth = np.asarray(measured, dtype=np.float64).ravel()
    guess = np.asarray(predicted, dtype=np.float64).ravel()
    if truth.shape != guess.shape or not truth.size:
        raise CostModelError(f"metrics need as many predictions as measurements, got {guess.size} and {truth.size}")
    if not (np.all(truth > 0) and np.all(np.isfinite(guess))):
        raise CostModelError("metrics need measured costs above 0 and finite predictions")
    return truth, guess
