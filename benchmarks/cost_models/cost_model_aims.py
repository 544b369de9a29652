"""Aims for the cost models, and checks of whether they are met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from neuroshard_pipeline.augment.varied_draws import EXTRAPOLATION

TOLERATED_BIAS = 0.02

#: In tables, marks models that were trained on samples of the paper's kind only. These models have no aims.
TRAINED_ON_PAPER = "trained on paper's kind only"


@dataclass(frozen=True)
class Aim:
    """One figure and its bounds.

    Attributes:
        name: description.
        value: the figure that was found.
        low: lower limit.
        high: upper limit.
    """

    name: str
    value: float
    low: float = float("-inf")
    high: float = float("inf")

    @property
    def gap(self) -> float:
        """How far the figure is outside the limits; at most 0 if the aim is met."""
        return max(self.low - self.value, self.value - self.high)

    def line(self) -> str:
        """A line of text: the figure, the limits, and whether the aim is met."""
        limits = f"at least {self.low:.4g}" if self.high == float("inf") else f"at most {self.high:.4g}"
        if self.low > float("-inf") and self.high < float("inf"):
            limits = f"from {self.low:.4g} to {self.high:.4g}"
        verdict = "met" if self.gap <= 0 else f"MISSED by {self.gap:.4g}"
        return f"{self.name:70s} {self.value:8.4f}   {limits:22s} {verdict}"


def compute_aims(models: pd.DataFrame, noise_floor: float | None) -> list[Aim]:
    """The aims of the compute model.

    Args:
        models: mean figures over seeds, by model and samples.
        noise_floor: median relative difference of two measurements, or None if nothing was measured twice.
    """
    ours, paper = models.loc["universal"].drop(TRAINED_ON_PAPER, errors="ignore"), models.loc["paper"]
    held_out = ours.loc["held out"]
    aims = []
    if noise_floor is not None:
        aims.append(Aim("median error (limit: 1.2 x noise floor)", held_out["median_ape"], high=1.2 * noise_floor))
    aims += [
        Aim("MAPE", held_out["mape"], high=0.03),
        Aim(
            "MAPE (limit: half of the paper network's on our mix)",
            held_out["mape"],
            high=0.5 * paper.loc["held out", "mape"],
        ),
        Aim("Kendall's tau", held_out["kendall_tau"], low=0.975),
        Aim("coverage of 90 % intervals on held-out samples", held_out["coverage"], 0.85, 0.95),
    ]
    for name, figures in ours.drop("held out").iterrows():
        aims += _chosen_aims(str(name), figures, held_out) if str(name).startswith("chosen") else []
    for name, figures in ours.drop("held out").iterrows():
        if name == EXTRAPOLATION:
            text = f"{name}: width of intervals (limit: held-out width)"
            aims.append(Aim(text, figures["width"], low=held_out["width"]))
        elif not str(name).startswith(("chosen", "held out")):
            aims.append(Aim(f"{name}: MAPE (limit: 1.5 x held-out MAPE)", figures["mape"], high=1.5 * held_out["mape"]))
    return aims


def _chosen_aims(name: str, figures: pd.Series, held_out: pd.Series) -> list[Aim]:
    """Aims on the shards that a search has chosen."""
    return [
        Aim(f"{name}: MAPE (limit: 1.5 x held-out MAPE)", figures["mape"], high=1.5 * held_out["mape"]),
        Aim(f"{name}: bias", figures["bias"], -TOLERATED_BIAS, TOLERATED_BIAS),
        Aim(f"{name}: coverage of 90 % intervals", figures["coverage"], 0.85, 0.95),
    ]


def learning_aims(learning: pd.DataFrame) -> list[Aim]:
    """The aim of the learning curve; `learning`: mean MAPE by model, one column per number of samples, ascending."""
    few, every = learning.loc["universal"].iloc[0], learning.loc["paper"].iloc[-1]
    return [Aim("MAPE with a tenth of the samples (limit: paper's network with all)", few, high=every)]


def measured_comm_aims(rows: pd.DataFrame, floors: Mapping[str, float | None]) -> list[Aim]:
    """The aims of the communication model on measured collectives, per direction.

    Args:
        rows: figures with `direction` and `model`, for world sizes with and without training samples.
        floors: median noise floor per direction.
    """
    mean = rows[rows["model"] == "universal, one network"].groupby("direction", sort=False).mean(numeric_only=True)
    aims = []
    for direction, figures in mean.iterrows():
        floor = floors.get(str(direction))
        if floor is not None:
            name = f"measured {direction} comm: MAPE (limit: 1.5 x noise floor)"
            aims.append(Aim(name, figures["mape"], high=1.5 * floor))
        aims.append(Aim(f"measured {direction} comm: coverage of 90 % intervals", figures["coverage"], 0.85, 0.95))
    return aims


def topology_aims(rows: pd.DataFrame) -> list[Aim]:
    """The aims of the communication model on the modelled cluster, by world size and kind of samples.

    Args:
        rows: figures with `direction`, `ranks` and `kind`.
    """
    by_world = rows.groupby(["kind", "ranks"], sort=False)[["mape"]].mean()
    return [
        Aim(f"topology, {ranks} ranks, {kind}: MAPE", mape, high=0.1 if kind == "unseen" else 0.05)
        for (kind, ranks), mape in by_world["mape"].items()
    ]


def table(frame: pd.DataFrame) -> str:
    """A table with shares in percent; tau and counts are plain numbers."""
    plain = {"kendall_tau": "{:.3f}".format, "count": "{:.0f}".format}
    return frame.to_string(formatters={name: plain.get(name, "{:+.1%}".format) for name in frame}, na_rep="-")
