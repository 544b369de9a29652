"""Computes the accuracy of predictions, for example for the dataset `train.metrics`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.intervals import coverage, relative_width
from neuroshard_pipeline.errors import CostModelError

Metrics = dict[str, dict[str, Any]]


def mape(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute percentage error as a fraction: the mean of |predicted - measured| / measured."""
    truth, guess = _pair(measured, predicted)
    return float(np.mean(np.abs(guess - truth) / truth))


def kendall_tau(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Kendall's tau-b of measured and predicted costs: 1 for the same ranking, NaN if one array is constant."""
    from scipy.stats import kendalltau  # imported late: this takes half a second

    return float(kendalltau(*_pair(measured, predicted)).statistic)


def accuracy(measured: ArrayLike, predicted: ArrayLike, noise_floor: float | None) -> dict[str, float | None]:
    """The accuracy of predictions in several metrics, which are reported for every model.

    Args:
        measured: costs in ms, all above 0.
        predicted: costs in ms, same shape.
        noise_floor: median relative difference between two measurements of a sample, or None if unknown.

    Returns:
        `mape`, `median_ape` and `bias`: mean absolute, median absolute and mean signed error as a share of the measured
        cost; `bias` is below 0 if predictions are too low. `r2`: coefficient of determination of the costs
        (not of their logarithms), NaN if all measured costs are equal; `kendall_tau`; `noise_floor`.
    """
    truth, guess = _pair(measured, predicted)
    total = np.sum((truth - truth.mean()) ** 2)
    return {
        "mape": mape(truth, guess),
        "median_ape": float(np.median(np.abs(guess - truth) / truth)),
        "bias": float(np.mean(guess / truth - 1.0)),
        "r2": float(1.0 - np.sum((truth - guess) ** 2) / total) if total > 0 else float("nan"),
        "kendall_tau": kendall_tau(truth, guess),
        "noise_floor": noise_floor,
    }


def held_out_accuracy(rows: pd.DataFrame, noise_floor: float | None) -> dict[str, Any]:
    """`accuracy` of held-out rows; with intervals, also their `coverage_90` and `mean_relative_width` (`intervals`).

    There is one row per held-out cost, with the columns `measured_ms, predicted_ms, low_ms, high_ms`.
    """
    figures: dict[str, Any] = accuracy(rows["measured_ms"], rows["predicted_ms"], noise_floor)
    known = rows.dropna(subset=["low_ms", "high_ms"])
    if not known.empty:
        bounds = known[["low_ms", "high_ms"]].to_numpy()
        figures["coverage_90"] = coverage(known["measured_ms"].to_numpy(), bounds)
        figures["mean_relative_width"] = relative_width(known["predicted_ms"].to_numpy(), bounds)
    return figures


def metrics_of(held_out: pd.DataFrame, floor: Mapping[str, Any] | None, parts: Mapping[str, str]) -> Metrics:
    """`held_out_accuracy` of every model in a frame of `measured.held_out_frame`; `floor` is as in `noise_floor_of`.

    `parts` maps the name of every model to the part of the cost that it predicts.
    """
    return {
        name: held_out_accuracy(held_out[held_out["model"] == name], noise_floor_of(floor, part))
        for name, part in parts.items()
    }


def noise_floor_of(floor: Mapping[str, Any] | None, part: str) -> float | None:
    """The median noise floor of a part of the cost (`forward`, `backward` or `total`); None if it is unknown."""
    return None if floor is None else floor[part]["median"]


def _pair(measured: ArrayLike, predicted: ArrayLike) -> tuple[FloatArray, FloatArray]:
    truth = np.asarray(measured, dtype=np.float64).ravel()
    guess = np.asarray(predicted, dtype=np.float64).ravel()
    if truth.shape != guess.shape or not truth.size:
        raise CostModelError(f"metrics need a prediction for every cost; got {guess.size} for {truth.size} costs")
    if not (np.all(truth > 0) and np.all(np.isfinite(guess))):
        raise CostModelError("metrics need measured costs above 0 and finite predictions")
    return truth, guess
