"""Verdicts in words and tables in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOTHING = "-"
_GAP = "  "
_HEADER = ["sharder", "solved", "cost ms", "vs best", "interval", "predicted", "imbalance", "s/task", "seeds"]


def suite_rows(judged: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder of a judged suite, the cheapest first, those without a cost last."""
    lines = [_HEADER]
    ranked = sorted(
        judged["sharders"].items(), key=lambda item: (item[1]["cost_ms"] is None, item[1]["cost_ms"] or 0.0)
    )
    for name, values in ranked:
        relative = values["relative"] or {"value": None, "low": None, "high": None}
        interval = NOTHING if relative["low"] is None else f"{relative['low']:.3f}-{relative['high']:.3f}"
        seeds = str(values["seeds"])
        if judged["basis"] == "measured" and values["measured_seeds"] < values["seeds"]:
            seeds = f"{values['seeds']} ({values['measured_seeds']})"
        lines.append(
            [
                name,
                f"{values['solved']}/{values['tried']}",
                _fixed(values["cost_ms"], 3),
                _fixed(relative["value"], 3),
                interval,
                _fixed(values["predicted_ms"], 3),
                NOTHING if values["imbalance"] is None else f"{100 * values['imbalance']:.0f} %",
                _fixed(values["seconds"], 3),
                seeds,
            ]
        )
    return lines


def suite_note(judged: Mapping[str, Any]) -> str:
    """What the costs of a suite's table are, and who is best as far as that can be said."""
    basis, common, tasks = judged["basis"], judged["common_tasks"], judged["tasks"]
    left_out = [name for name in judged["sharders"] if name not in judged["compared"]]
    if common:
        costs = f"{basis.capitalize()} embedding cost, mean over the {common} of {tasks} tasks that all"
        costs += " compared sharders solved" if left_out else " sharders solved"
    else:
        costs = f"No task of {tasks} was solved by all sharders"
    parts = [costs]
    if basis == "predicted":
        parts.append("nothing of this suite was measured")
    if left_out:
        parts.append(f"not compared, as they solved too few: {', '.join(left_out)}")
    if judged["not_run"]:
        parts.append(f"not run here, as they take too long: {', '.join(judged['not_run'])}")
    return "; ".join(parts) + ". " + _verdict(judged)


def _verdict(judged: Mapping[str, Any]) -> str:
    if judged["best"]:
        return f"Best: {judged['best']}."
    if judged["not_told_apart"]:
        return f"No one is best: {', '.join(judged['not_told_apart'])} cannot be told apart."
    return "Too few tasks to call anyone best."


def benchmark_table(judgement: Mapping[str, Any], hardware: Mapping[str, Any]) -> str:
    """All suites as text: a table, a note and the statements ours-rival for each; the noise floor at the end."""
    parts = []
    for suite, judged in judgement["suites"].items():
        statements = [pair["statement"] for pair in judged["pairs"]]
        parts.append("\n".join([f"== {suite}", *aligned(suite_rows(judged)), "", suite_note(judged), *statements]))
    return "\n\n".join([*parts, noise_note(hardware)])


def noise_note(hardware: Mapping[str, Any]) -> str:
    """How far two independent measurements of the campaign lie apart."""
    floor = hardware["noise_floor"]
    known = {
        "compute of a rank": floor["compute"].get("total", {}),
        "backward communication": floor["comm"].get("backward", {}),
        "forward communication": floor["comm"].get("forward", {}),
    }
    told = [f"{name} {100 * value['median']:.1f} %" for name, value in known.items() if value.get("median") is not None]
    if not told:
        return "Noise floor: nothing was measured twice."
    return f"Noise floor of this campaign (median disagreement of two measurements): {', '.join(told)}."


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first to the left and the others to the right, with a rule below the header."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = [
        _GAP.join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    return [shown[0], _GAP.join("-" * width for width in widths), *shown[1:]]


def _fixed(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value:,.{decimals}f}"
