"""Numbers and findings in words: formats, the table of sharders, the report's headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.report.style import OURS
from neuroshard_pipeline.report.totals import SharderRow, sharder_rows

NOTHING = "-"


def decimals_for(values: Sequence[float | None]) -> int:
    """Decimals that show three digits of the largest value, the same for a whole column so that points align."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return next((decimals for edge, decimals in ((100, 1), (10, 2), (1, 3), (0.1, 4)) if largest >= edge), 5)


def number(value: float | None, decimals: int) -> str:
    """Fixed-point text, or a dash for None."""
    return NOTHING if value is None else f"{value:,.{decimals}f}"


def amount(value: float) -> str:
    """A number in running text, three significant digits: `3.21`, `0.0123`, `1,230`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def percent(share: float) -> str:
    """A share as a percentage with as many decimals as it deserves."""
    return f"{100 * share:.{0 if abs(share) >= 0.1 else 1}f} %"


def sharder_table(rows: Sequence[SharderRow]) -> list[list[str]]:
    """Header and one line per sharder: name, solved, measured, relative to the best, predicted, seconds."""
    costs = [row.cost_ms for row in rows if row.cost_ms is not None]
    best = min(costs, default=None)
    cost_decimals = decimals_for([row.measured_ms for row in rows] + [row.predicted_ms for row in rows])
    second_decimals = decimals_for([row.seconds_per_task for row in rows])
    lines = [["sharder", "solved", "measured ms", "vs best", "predicted ms", "s/task"]]
    for row in rows:
        relative = None if row.cost_ms is None or not best else row.cost_ms / best
        lines.append(
            [
                row.sharder,
                f"{row.solved}/{row.tried}",
                number(row.measured_ms, cost_decimals),
                NOTHING if relative is None else f"{relative:.3f}",
                number(row.predicted_ms, cost_decimals),
                number(row.seconds_per_task, second_decimals),
            ]
        )
    return lines


def common_task_count(summary: Mapping[str, Any]) -> int | None:
    """How many tasks every sharder solved, or None where the summary does not say."""
    tasks = summary.get("common_tasks")
    if tasks is None:
        return None
    return len(tasks) if isinstance(tasks, list | tuple) else int(tasks)


def cost_note(summary: Mapping[str, Any]) -> str:
    """What the costs of the table of sharders are means over."""
    count = common_task_count(summary)
    if count == 0:
        return "No task was solved by every sharder, so their mean costs cannot be compared."
    tasks = "the tasks" if count is None else plural(count, "task")
    return f"Costs are means over {tasks} that every sharder solved."


def plural(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def headline(summary: Mapping[str, Any]) -> str:
    """The finding of a run in two or three sentences, whether or not it flatters our sharder."""
    rows = sharder_rows(summary)
    if not rows:
        return "No sharder was run."
    sentences = [_cost_sentence(rows, summary), _success_sentence(rows)]
    return " ".join(sentence for sentence in sentences if sentence)


def _cost_sentence(rows: Sequence[SharderRow], summary: Mapping[str, Any]) -> str:
    priced = [row for row in rows if row.cost_ms is not None]
    if not priced or common_task_count(summary) == 0:
        return cost_note(summary)
    ours = next((row for row in priced if row.sharder == OURS), priced[0])
    others = [row for row in priced if row is not ours]
    how = "predicted" if ours.measured_ms is None else "measured"
    tasks = cost_note(summary).removeprefix("Costs are means over ").removesuffix(".")
    start = f"On {tasks}, {ours.sharder}'s plans have a mean {how} embedding cost of {amount(ours.cost_ms or 0)} ms"
    if not others:
        return start + "."
    rival = others[0]
    change = (ours.cost_ms or 0.0) / (rival.cost_ms or 1.0) - 1
    if abs(change) < 0.0005:
        return f"{start}, the same as the best other sharder, {rival.sharder}."
    word = "below" if change < 0 else "above"
    best = f"{rival.sharder} ({amount(rival.cost_ms or 0)} ms)"
    return f"{start}: {percent(abs(change))} {word} the best other sharder, {best}."


def _success_sentence(rows: Sequence[SharderRow]) -> str:
    failing = [row for row in rows if row.solved < row.tried]
    if not failing:
        return "Every sharder solved every task."
    ours = next((row for row in rows if row.sharder == OURS), None)
    own = f"{OURS} solved {ours.solved} of {ours.tried} tasks; " if ours else ""
    names = ", ".join(f"{row.sharder} ({row.tried - row.solved})" for row in failing)
    return f"{own}tasks without a plan that fits: {names}."
