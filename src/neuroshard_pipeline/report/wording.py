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
    """Fixed-point text; a dash for None, and `<0.001` for what would round to zero."""
    if value is None:
        return NOTHING
    smallest = 10.0**-decimals
    return f"<{smallest:.{decimals}f}" if 0 < value < smallest / 2 else f"{value:,.{decimals}f}"


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


def cost_note(summary: Mapping[str, Any]) -> str:
    """What the costs of the table of sharders are means over."""
    common, measured = int(summary["num_common_tasks"]), int(summary["num_measured_tasks"])
    if not common:
        return "No task was solved by every sharder, so their mean costs cannot be compared."
    note = f"Costs are means over {_common_tasks(common)}."
    if not measured:
        return f"{note} Nothing was measured."
    if measured != common:
        note = f"{note} Measured means are over the {measured} of them measured for all."
    return f"{note}{_origin_note(summary.get('costs_are', {}))}"


def _origin_note(costs_are: Mapping[str, str]) -> str:
    """A warning where a column called measured holds something else."""
    names = {"compute": "compute", "comm": "communication"}
    others = [f"{names[part]} is {origin}" for part, origin in costs_are.items() if origin != "measured"]
    return f" In the measured costs, {' and '.join(others)}, not measured here." if others else ""


def pair_notes(summary: Mapping[str, Any]) -> list[str]:
    """What can be said of our furthest search against the best other sharder and against the paper's search."""
    others = [row.sharder for row in sharder_rows(summary) if row.sharder not in OURS and row.cost_ms is not None]
    named = [*others[:1], OURS[0]]
    return [
        pair["statement"].partition(": ")[2] + "."
        for pair in summary["pairs"]
        if pair["ours"] == OURS[-1] and pair["rival"] in named and pair["ratio"] is not None
    ]


def _common_tasks(count: int) -> str:
    return f"the {plural(count, 'task')} that every sharder solved"


def plural(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def headline(summary: Mapping[str, Any]) -> str:
    """The finding of a run in two or three sentences, whether or not it flatters our sharders."""
    rows = sharder_rows(summary)
    if not rows:
        return "No sharder was run."
    return f"{_cost_sentence(rows, summary)} {_success_sentence(rows)}"


def _cost_sentence(rows: Sequence[SharderRow], summary: Mapping[str, Any]) -> str:
    priced = [row for row in rows if row.cost_ms is not None]
    if not priced:
        return cost_note(summary)
    ours = [row for name in OURS for row in priced if row.sharder == name] or priced[:1]
    others = [row for row in priced if row not in ours and row.sharder not in OURS]
    how = "predicted" if ours[0].measured_ms is None else "measured"
    count = int(summary["num_common_tasks" if how == "predicted" else "num_measured_tasks"])
    costs = " and ".join(f"{amount(row.cost_ms or 0)} ms with {row.sharder}" for row in ours)
    start = f"On {_common_tasks(count)}, the mean {how} embedding cost is {costs}"
    if not others:
        return f"{start}."
    rival = others[0]
    changes = _changes([(row.cost_ms or 0.0) / (rival.cost_ms or 1.0) - 1 for row in ours])
    return f"{start}: {changes} the best other sharder, {rival.sharder} ({amount(rival.cost_ms or 0)} ms)."


def _changes(changes: Sequence[float]) -> str:
    """`12 % below`, `12 % and 14 % below`, `3.1 % above and 2.0 % below` or `the same as`."""
    shares = ["" if abs(change) < 0.0005 else percent(abs(change)) for change in changes]
    words = ["below" if change < 0 else "above" for change in changes]
    if all(shares) and len(set(words)) == 1 and len(set(shares)) == 1:
        return f"{shares[0]} {words[0]}"
    if all(shares) and len(set(words)) == 1:
        return f"{' and '.join(shares)} {words[0]}"
    return " and ".join(
        f"{share} {word}" if share else "the same as" for share, word in zip(shares, words, strict=True)
    )


def _success_sentence(rows: Sequence[SharderRow]) -> str:
    failing = [row for row in rows if row.solved < row.tried]
    if not failing:
        return "Every sharder solved every task."
    tried = rows[0].tried
    complete = [row.sharder for row in rows if row.sharder in OURS and row.solved == row.tried]
    own = f"{' and '.join(complete)} solved all {plural(tried, 'task')}; " if complete else ""
    worst = max(row.tried - row.solved for row in failing)
    few = ", ".join(row.sharder for row in failing)
    who = few if len(failing) <= 2 else plural(len(failing), "sharder")
    extent = f"up to {worst}" if len(failing) > 1 else f"{worst}"
    return f"{own}{who} found no plan that fits for {extent} of {'them' if own else plural(tried, 'task')}."
