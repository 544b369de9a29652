"""What the cost models should reach, and by how much they miss it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

TOLERATED_BIAS = 0.02


@dataclass(frozen=True)
class Aim:
    """One figure and its bounds.

    Attributes:
        name: what is asked.
        value: what was found.
        low: the least that will do.
        high: the most.
    """

    name: str
    value: float
    low: float = float("-inf")
    high: float = float("inf")

    def line(self) -> str:
        """In words: met, or missed by how much."""
        limits = f"at least {self.low:.4g}" if self.high == float("inf") else f"at most {self.high:.4g}"
        if self.low > float("-inf") and self.high < float("inf"):
            limits = f"from {self.low:.4g} to {self.high:.4g}"
        gap = max(self.low - self.value, self.value - self.high)
        verdict = "met" if gap <= 0 else f"MISSED by {gap:.4g}"
        return f"{self.name:66s} {self.value:8.4f}   {limits:22s} {verdict}"


def compute_aims(
    models: pd.DataFrame, learning: pd.DataFrame, noise_floor: float | None, drift: Mapping[str, float]
) -> list[Aim]:
    """The aims of the compute model.

    Args:
        models: mean figures over seeds, by model.
        learning: mean MAPE over seeds, by model, one column per number of samples.
        noise_floor: median disagreement of two measurements, or None where nothing was measured twice.
        drift: how much dearer anchors became until the plans were measured; empty where none were.
    """
    ours, paper = models.loc["universal"], models.loc["paper"]
    aims = (
        []
        if noise_floor is None
        else [Aim("median error, 1.2 x noise floor", ours["median_ape"], high=1.2 * noise_floor)]
    )
    aims += [
        Aim("MAPE", ours["mape"], high=0.03),
        Aim("MAPE, half of the paper network's", ours["mape"], high=0.5 * paper["mape"]),
        Aim("Kendall's tau", ours["kendall_tau"], low=0.975),
        Aim("coverage of 90 % intervals, held out", ours["coverage"], 0.85, 0.95),
        Aim(
            "MAPE with a tenth of the samples, the paper network's with all",
            learning.loc["universal"].iloc[0],
            high=learning.loc["paper"].iloc[-1],
        ),
    ]
    return aims + (_chosen_aims(ours, drift) if "chosen mape" in ours else [])


def _chosen_aims(ours: pd.Series, drift: Mapping[str, float]) -> list[Aim]:
    """Of the shards that a search has chosen."""
    aims = [
        Aim("MAPE on chosen shards, 1.5 x held-out", ours["chosen mape"], high=1.5 * ours["mape"]),
        Aim("bias on chosen shards", ours["chosen bias"], -TOLERATED_BIAS, TOLERATED_BIAS),
        Aim("coverage of 90 % intervals, chosen shards", ours["chosen coverage"], 0.85, 0.95),
    ]
    if "compute" in drift:
        net = (1 + ours["chosen bias"]) * (1 + drift["compute"]) - 1
        aims.insert(2, Aim("bias on chosen shards net of drift", net, -TOLERATED_BIAS, TOLERATED_BIAS))
    return aims


def comm_aims(rows: pd.DataFrame, floors: Mapping[str, float | None]) -> list[Aim]:
    """The aims of the communication model, per direction: one network for all world sizes, and sizes never seen.

    Args:
        rows: figures with `direction` and `model`.
        floors: median noise floor per direction.
    """
    mean = rows.groupby(["direction", "model"])["mape"].mean()
    aims = []
    for (direction, model), value in mean.items():
        if not str(model).startswith("universal"):
            continue
        unseen = "never seen" in str(model)
        aims.append(Aim(f"communication {direction}, {model}: MAPE", value, high=0.1 if unseen else 0.05))
        floor = floors.get(str(direction))
        if floor is not None and not unseen:
            aims.append(Aim(f"communication {direction}, {model}: 1.5 x noise floor", value, high=1.5 * floor))
    return aims


def mean_over_seeds(rows: list[dict[str, Any]], key: str = "model") -> pd.DataFrame:
    """Means by model, in the order in which models came."""
    return pd.DataFrame(rows).groupby(key, sort=False).mean(numeric_only=True)


def table(frame: pd.DataFrame) -> str:
    """Shares in percent, tau as it is."""
    formats = {name: (lambda v: f"{v:.3f}") if name.endswith("tau") else (lambda v: f"{v:+.1%}") for name in frame}
    return frame.to_string(formatters=formats, na_rep="-")
