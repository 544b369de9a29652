"""One of our sharders against another one: how far its costs lie below, and whether that can be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.bootstrap import Bootstrap, Interval

#: The searches of this project; each is compared with everyone else.
OURS: tuple[str, ...] = ("neuroshard_plus", "neuroshard")


def told_pair(
    where: str, basis: str, costs: pd.DataFrame, ours: str, rival: str, bootstrap: Bootstrap, least_tasks: int
) -> dict[str, Any]:
    """Two sharders on the tasks that both solved.

    Args:
        where: what the tasks are called together, for the statement.
        basis: `measured` or `predicted`.
        costs: cost by task and sharder; NaN where there is none.
        ours: one column.
        rival: another one.
        bootstrap: of the interval.
        least_tasks: with fewer tasks there is no interval and no verdict.

    Returns:
        `ours, rival, tasks, ratio` (of mean costs, ours over the rival's), its interval `low, high`, `verdict`
        (`cheaper`, `dearer`, `not told apart`, `too few tasks`) and `statement`; None for what cannot be said.
    """
    both = costs[[ours, rival]].dropna()
    facts: dict[str, Any] = {"ours": ours, "rival": rival, "tasks": len(both), "ratio": None, "low": None, "high": None}
    facts["verdict"] = "too few tasks"
    if len(both):
        interval = bootstrap.ratio_of_means(both[ours].to_numpy(), both[rival].to_numpy())
        facts["ratio"] = interval.value
        if len(both) >= least_tasks:
            facts |= {"low": interval.low, "high": interval.high, "verdict": _verdict(interval)}
    return facts | {"statement": _statement(where, basis, facts, bootstrap.confidence)}


def _verdict(interval: Interval) -> str:
    if interval.high < 1.0:
        return "cheaper"
    return "dearer" if interval.low > 1.0 else "not told apart"


def _statement(suite: str, basis: str, pair: Mapping[str, Any], confidence: float) -> str:
    """What can be said of ours against a rival: `paper_4: neuroshard_plus's measured cost is 21.0 % below ...`."""
    ours, rival, tasks = pair["ours"], pair["rival"], pair["tasks"]
    if pair["ratio"] is None:
        return f"{suite}: no task was solved by both {ours} and {rival}"
    where = f"on {tasks} task" + ("" if tasks == 1 else "s")
    if pair["low"] is None:
        return f"{suite}: {ours}'s {basis} cost is {_change(pair['ratio'])} {rival}'s {where}, too few for an interval"
    interval = f"({100 * confidence:g} % interval {_percent(pair['low'])} to {_percent(pair['high'])})"
    if pair["verdict"] == "not told apart":
        return f"{suite}: {ours} cannot be told apart from {rival} by {basis} cost {where} {interval}"
    return f"{suite}: {ours}'s {basis} cost is {_change(pair['ratio'])} {rival}'s {where} {interval}"


def _change(ratio: float) -> str:
    if abs(ratio - 1.0) < 0.0005:
        return "the same as"
    return f"{100 * abs(ratio - 1.0):.1f} % {'below' if ratio < 1.0 else 'above'}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1.0):+.1f} %"
