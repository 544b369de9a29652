"""The benchmark as an HTML page, which compares the costs of the sharders in every suite."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.evaluation.verdicts import best_rival, find_pair
from neuroshard_pipeline.report.benchmark_table import benchmark_note, suite_note, suite_table, suite_verdict
from neuroshard_pipeline.report.facts import nested_rows
from neuroshard_pipeline.report.figures import comparisons, performance_profile
from neuroshard_pipeline.report.formats import MISSING
from neuroshard_pipeline.report.page import render_page
from neuroshard_pipeline.report.sharder_summary import as_sentence

#: Our most thorough search, and the search of the paper.
_PLUS, _PAPER = OURS


def render_benchmark(verdicts: Mapping[str, Any], costs: pd.DataFrame, lineage: Mapping[str, Any]) -> str:
    """The benchmark as one self-contained HTML page."""
    figures = {f"comparisons_{ours}": comparisons(verdicts, ours) for ours in OURS}
    for suite, verdict in verdicts["suites"].items():
        figures[f"profile_{suite}"] = performance_profile(suite, costs[costs["suite"] == suite], verdict["basis"])
    return render_page(
        "benchmark.html",
        figures,
        headlines=headlines(verdicts),
        noise=benchmark_note(verdicts),
        confidence=f"{100 * verdicts['confidence']:g}",
        suites=[_suite(name, verdict) for name, verdict in verdicts["suites"].items()],
        lineage_rows=nested_rows(lineage),
    )


def headlines(verdicts: Mapping[str, Any]) -> list[str]:
    """For every suite, sentences that compare neuroshard_plus with the best rival and with the paper's search."""
    pairs = [
        (suite, find_pair(verdict, _PLUS, rival))
        for suite, verdict in verdicts["suites"].items()
        for rival in (best_rival(verdict), _PAPER)
    ]
    return [f"{suite}: {pair['statement']}." for suite, pair in pairs if pair is not None and pair["ratio"] is not None]


def _suite(name: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The template's variables for one suite."""
    return {
        "name": name,
        "table": suite_table(verdict),
        "verdict": suite_verdict(verdict),
        "note": suite_note(verdict),
        "groups": group_table(verdict),
        "statements": [as_sentence(pair["statement"]) for pair in verdict["pairs"]],
    }


def group_table(verdict: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder, with the mean cost on the common tasks of each group of tasks.

    A sharder that solves too few tasks (`least_success`) has a line without costs. Common tasks are those for which
    every sharder that solves enough tasks has a cost. The number of tasks solved follows in brackets if the sharder did
    not solve all.
    """
    groups = verdict["groups"]
    titles = [f"{name} ({values['common_tasks']} of {values['tasks']})" for name, values in groups.items()]
    lines = [[name, *(_group_cell(values, name) for values in groups.values())] for name in verdict["sharders"]]
    return [["sharder", *titles], *lines]


def _group_cell(values: Mapping[str, Any], sharder: str) -> str:
    solved, cost = values["solved"].get(sharder, 0), values["cost_ms"].get(sharder)
    shown = MISSING if cost is None else f"{cost:.3f}"
    return shown if solved == values["tasks"] else f"{shown} [{solved}]"
