"""`search.summary` as a table of sharders and as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.report.formats import MISSING, amount, decimals_for, fixed, percent, plural


@dataclass(frozen=True)
class SharderRow:
    """One sharder of `search.summary`.

    Attributes:
        sharder: its name.
        solved: number of tasks for which it found a plan that fits.
        tried: number of tasks that it was given.
        measured_ms: mean measured embedding cost of the tasks that every sharder solved; None if there is none.
        predicted_ms: mean predicted embedding cost of the tasks that every sharder solved; None if there is none.
        seconds_per_task: mean time to make one plan; None if unknown.
    """

    sharder: str
    solved: int
    tried: int
    measured_ms: float | None
    predicted_ms: float | None
    seconds_per_task: float | None

    @property
    def cost_ms(self) -> float | None:
        """The measured cost, or the predicted cost if nothing was measured."""
        return self.predicted_ms if self.measured_ms is None else self.measured_ms


def sharder_rows(summary: Mapping[str, Any]) -> list[SharderRow]:
    """One row per sharder, the cheapest first; sharders without a cost come last, by name."""
    rows = [
        SharderRow(
            sharder=name,
            solved=int(values["tasks_solved"]),
            tried=int(values["tasks_tried"]),
            measured_ms=_number(values.get("mean_measured_ms")),
            predicted_ms=_number(values.get("mean_predicted_ms")),
            seconds_per_task=_number(values.get("mean_seconds_per_task")),
        )
        for name, values in summary["sharders"].items()
    ]
    return sorted(rows, key=lambda row: (row.cost_ms is None, row.cost_ms or 0.0, row.sharder))


def _number(value: Any) -> float | None:
    """A float, or None for null and NaN."""
    return None if value is None or pd.isna(value) else float(value)


def sharder_table(rows: Sequence[SharderRow]) -> list[list[str]]:
    """Header and one line per sharder: name, solved, measured, relative to the best, predicted, seconds."""
    best = min((row.cost_ms for row in rows if row.cost_ms is not None), default=None)
    cost_decimals = decimals_for([row.measured_ms for row in rows] + [row.predicted_ms for row in rows])
    second_decimals = decimals_for([row.seconds_per_task for row in rows])
    lines = [
        [
            row.sharder,
            f"{row.solved}/{row.tried}",
            fixed(row.measured_ms, cost_decimals),
            MISSING if row.cost_ms is None or not best else f"{row.cost_ms / best:.3f}",
            fixed(row.predicted_ms, cost_decimals),
            fixed(row.seconds_per_task, second_decimals),
        ]
        for row in rows
    ]
    return [["sharder", "solved", "measured ms", "vs best", "predicted ms", "s/task"], *lines]


def cost_note(summary: Mapping[str, Any]) -> str:
    """Which tasks the costs of the sharder table are averaged over, and where the costs come from."""
    common, measured = int(summary["num_common_tasks"]), int(summary["num_measured_tasks"])
    if not common:
        return "No task was solved by every sharder, so mean costs cannot be compared."
    note = f"Costs are means over {_common_tasks(common)}."
    if not measured:
        return f"{note} No plan was measured."
    if measured != common:
        note += f" Measured costs are means over {measured} of these tasks: those measured for every sharder."
    return f"{note} {origin_note(summary.get('costs_are', {}))}".strip()


def origin_note(costs_are: Mapping[str, str]) -> str:
    """A sentence that names the parts of "measured" costs that were modelled or recorded; empty if there are none.

    Args:
        costs_are: the origin of each part of the cost: `{"compute": "recorded", "comm": "modelled"}`.
    """
    names = {"compute": "compute", "comm": "communication"}
    others = [f"{names[part]} costs are {origin}" for part, origin in costs_are.items() if origin != "measured"]
    return f'Not every "measured" cost was measured on this machine: {" and ".join(others)}.' if others else ""


def comparison_notes(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that compare our most thorough search with the best other sharder and with the paper's search."""
    others = [row.sharder for row in sharder_rows(summary) if row.sharder not in OURS and row.cost_ms is not None]
    rivals = [*others[:1], *OURS[1:]]
    return [
        as_sentence(pair["statement"])
        for pair in summary["pairs"]
        if pair["ours"] == OURS[0] and pair["rival"] in rivals and pair["ratio"] is not None
    ]


def as_sentence(statement: str) -> str:
    """The statement of a comparison as a sentence; a sharder's name at its start keeps its lower case."""
    start = "No" if statement.startswith("no ") else statement[:2]
    return f"{start}{statement[2:]}."


def _common_tasks(count: int) -> str:
    return f"the {plural(count, 'task')} that every sharder solved"


def headline(summary: Mapping[str, Any]) -> str:
    """The result of a run in two or three sentences, whether or not our sharders win."""
    rows = sharder_rows(summary)
    if not rows:
        return "No sharder was run."
    return f"{_cost_sentences(rows, summary)} {_success_sentence(rows)}"


def _cost_sentences(rows: Sequence[SharderRow], summary: Mapping[str, Any]) -> str:
    costs = {row.sharder: row.cost_ms for row in rows if row.cost_ms is not None}
    if not costs:
        return cost_note(summary)
    ours = [name for name in OURS if name in costs] or list(costs)[:1]
    others = [name for name in costs if name not in (*OURS, *ours)]
    basis = "predicted" if all(row.measured_ms is None for row in rows) else "measured"
    count = int(summary["num_measured_tasks" if basis == "measured" else "num_common_tasks"])
    told = " and ".join(f"{amount(costs[name])} ms with {name}" for name in ours)
    start = f"On {_common_tasks(count)}, the mean {basis} embedding cost is {told}."
    if not others:
        return start
    changes = " and ".join(f"{name} is {_change(costs[name] / costs[others[0]] - 1)}" for name in ours)
    return f"{start} The best other sharder is {others[0]} with {amount(costs[others[0]])} ms; {changes}."


def _change(change: float) -> str:
    """`12 % cheaper`, `3.1 % more expensive` or `equally expensive`."""
    if abs(change) < 0.0005:
        return "equally expensive"
    return f"{percent(abs(change))} {'cheaper' if change < 0 else 'more expensive'}"


def _success_sentence(rows: Sequence[SharderRow]) -> str:
    failed = {row.sharder: row.tried - row.solved for row in rows if row.solved < row.tried}
    if not failed:
        return "Every sharder solved every task."
    tried = plural(rows[0].tried, "task")
    complete = [row.sharder for row in rows if row.sharder in OURS and row.sharder not in failed]
    start = f"{' and '.join(complete)} solved all {tried}; " if complete else ""
    who = " and ".join(failed) if len(failed) <= 2 else plural(len(failed), "sharder")
    most = f"up to {max(failed.values())}" if len(failed) > 1 else str(max(failed.values()))
    return f"{start}{who} found no plan that fits for {most} of {'them' if complete else tried}."
