"""Compares the costs of two sharders on the same tasks, with a paired bootstrap confidence interval.

The interval shows how much the result varies if other tasks of the same kind are drawn. Shapes: N tasks, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray

#: The searches of this project. Each is compared with every other sharder.
OURS: tuple[str, ...] = ("neuroshard_plus", "neuroshard")

Basis = Literal["measured", "predicted"]


@dataclass(frozen=True)
class Interval:
    """An estimate from all tasks with the lower and the upper end of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """Percentile confidence intervals from R resampled tasks. The same seed gives the same intervals."""

    confidence: float
    resamples: int
    seed: int

    def ratio_of_means(self, ours: FloatArray, theirs: FloatArray) -> Interval:
        """The ratio mean(ours) / mean(theirs) of two arrays (N,) of costs. A resample draws the same tasks for both."""
        drawn_ours, drawn_theirs = self._means(np.stack([ours, theirs]))
        return self._interval(float(ours.mean() / theirs.mean()), drawn_ours / drawn_theirs)

    def mean(self, values: FloatArray) -> Interval:
        """The mean of `values` (N,) with its confidence interval."""
        return self._interval(float(values.mean()), self._means(values[None])[0])

    def _means(self, values: FloatArray) -> FloatArray:
        """Mean of every row of `values` (K, N) in every resample: (K, R). A resample draws N tasks with replacement."""
        count = values.shape[1]
        draws = np.random.default_rng(self.seed).multinomial(count, np.full(count, 1.0 / count), size=self.resamples)
        means: FloatArray = values @ (draws / count).T
        return means

    def _interval(self, value: float, drawn: FloatArray) -> Interval:
        tail = (1.0 - self.confidence) / 2.0
        low, high = np.quantile(drawn, [tail, 1.0 - tail]).tolist()
        return Interval(value, low, high)


@dataclass(frozen=True)
class Comparison:
    """How sharders are compared: by measured or predicted costs (the basis), which statements name.

    A confidence interval and a verdict need at least `least_tasks` tasks.
    """

    bootstrap: Bootstrap
    least_tasks: int
    basis: Basis

    def compare(self, costs: pd.DataFrame, ours: str, rival: str) -> dict[str, Any]:
        """Compare two sharders on the tasks for which both have a cost.

        Args:
            costs: cost in ms by task (rows) and sharder (columns); NaN where a sharder has no cost.
            ours: the column of the first sharder.
            rival: the column of the second sharder.

        Returns:
            `ours, rival`; `tasks`, the number of tasks compared; `ratio`, mean cost of `ours` / mean cost of `rival`;
            `low, high`, the confidence interval of the ratio; `verdict`: `cheaper`, `more expensive`, `no measurable
            difference` or `too few tasks`; `statement`, the result as a sentence. Unknown numbers are None.
        """
        both = costs[[ours, rival]].dropna()
        facts: dict[str, Any] = {"ours": ours, "rival": rival, "tasks": len(both)}
        facts |= {"ratio": None, "low": None, "high": None, "verdict": "too few tasks"}
        if len(both):
            interval = self.bootstrap.ratio_of_means(both[ours].to_numpy(), both[rival].to_numpy())
            facts["ratio"] = interval.value
            if len(both) >= self.least_tasks:
                facts |= {"low": interval.low, "high": interval.high, "verdict": _verdict(interval)}
        return facts | {"statement": self._statement(facts)}

    def compare_ours(self, costs: pd.DataFrame, sharders: Sequence[str]) -> list[dict[str, Any]]:
        """Compare each of `OURS` in `sharders` with all other `sharders`. Returns a result of `compare` per pair."""
        pairs = [(ours, rival) for ours in OURS for rival in sharders if ours in sharders and rival != ours]
        return [self.compare(costs, ours, rival) for ours, rival in pairs]

    def _statement(self, facts: dict[str, Any]) -> str:
        ours, rival, ratio = facts["ours"], facts["rival"], facts["ratio"]
        if ratio is None:
            return f"no task has costs of both {ours} and {rival}"
        tasks = f"{facts['tasks']} task" + ("" if facts["tasks"] == 1 else "s")
        if facts["low"] is None:
            return f"{_difference(ours, rival, ratio)} ({tasks}, {self.basis}, too few for a confidence interval)"
        ends = f"{_percent(facts['low'])} to {_percent(facts['high'])}"
        basis = f"({tasks}, {self.basis}, {100 * self.bootstrap.confidence:g} % confidence interval {ends})"
        if facts["verdict"] == "no measurable difference":
            return f"no measurable difference between {ours} and {rival} {basis}"
        return f"{_difference(ours, rival, ratio)} {basis}"


def _verdict(interval: Interval) -> str:
    if interval.high < 1.0:
        return "cheaper"
    return "more expensive" if interval.low > 1.0 else "no measurable difference"


def _difference(ours: str, rival: str, ratio: float) -> str:
    if abs(ratio - 1.0) < 0.0005:
        return f"{ours} costs as much as {rival}"
    return f"{ours} costs {100 * abs(ratio - 1.0):.1f} % {'less' if ratio < 1.0 else 'more'} than {rival}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1.0):+.1f} %"
