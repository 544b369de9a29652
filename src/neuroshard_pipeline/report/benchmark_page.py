"""The benchmark's page: who is best on which suite, by how much, at what price."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.benchmark.judging import best_rival, find_pair
from neuroshard_pipeline.evaluation.benchmark.wording import noise_note, suite_note, suite_rows
from neuroshard_pipeline.report.facts import nested_rows
from neuroshard_pipeline.report.figures.benchmark import cost_against_time, gains, performance_profile
from neuroshard_pipeline.report.html import drawing, render_page
from neuroshard_pipeline.report.style import OURS

#: Ours first that searches furthest.
_PLUS, _PAPER = "neuroshard_plus", "neuroshard"


def render_benchmark(
    judgement: Mapping[str, Any], costs: pd.DataFrame, hardware: Mapping[str, Any], lineage: Mapping[str, Any]
) -> str:
    """The benchmark as one self-contained HTML page.

    Args:
        judgement: `benchmark.judgement`.
        costs: `benchmark.task_costs`.
        hardware: `benchmark.hardware`.
        lineage: versions that went into the run and came out of it.
    """
    figures = {f"gains_{ours}": gains(judgement, ours) for ours in (_PLUS, _PAPER)}
    for suite, judged in judgement["suites"].items():
        own = costs[costs["suite"] == suite]
        figures[f"profile_{suite}"] = performance_profile(suite, own, judged["basis"])
        figures[f"time_{suite}"] = cost_against_time(suite, judged)
    return render_page(
        "benchmark.html",
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        ours=OURS,
        headlines=headlines(judgement),
        noise=noise_note(hardware),
        confidence=f"{100 * judgement['confidence']:g}",
        suites=[_suite(name, judged) for name, judged in judgement["suites"].items()],
        hardware_rows=nested_rows(hardware),
        lineage_rows=nested_rows(lineage),
        drawings={name: drawing(name, figure) for name, figure in figures.items()},
    )


def headlines(judgement: Mapping[str, Any]) -> list[str]:
    """Per suite what can be said of our best search against the best rival, and against the paper's search."""
    told = []
    for judged in judgement["suites"].values():
        for rival in (best_rival(judged), _PAPER):
            pair = find_pair(judged, _PLUS, rival)
            if pair is not None and pair["ratio"] is not None:
                told.append(str(pair["statement"]) + ".")
    return told


def _suite(name: str, judged: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows of a suite."""
    return {
        "name": name,
        "table": suite_rows(judged),
        "note": suite_note(judged),
        "groups": group_table(judged),
        "statements": [pair["statement"] + "." for pair in judged["pairs"]],
    }


def group_table(judged: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder: mean cost on the common tasks of each group, and how many tasks it solved."""
    groups = judged["groups"]
    lines = [
        ["sharder", *(f"{name} ({values['common_tasks']} of {values['tasks']})" for name, values in groups.items())]
    ]
    for sharder in judged["sharders"]:
        cells = [_group_cell(values, sharder) for values in groups.values()]
        lines.append([sharder, *cells])
    return lines


def _group_cell(values: Mapping[str, Any], sharder: str) -> str:
    solved, cost = values["solved"].get(sharder, 0), values["cost_ms"].get(sharder)
    shown = "-" if cost is None else f"{cost:.3f}"
    return shown if solved == values["tasks"] else f"{shown} [{solved}]"
