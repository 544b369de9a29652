"""Advice as text and as one HTML file."""

from collections.abc import Sequence

import plotly.graph_objects as go

from neuroshard_pipeline.advice import Advice, Line
from neuroshard_pipeline.report.formats import MISSING, fixed
from neuroshard_pipeline.report.page import render_page
from neuroshard_pipeline.report.style import PART_COLOURS, styled
from neuroshard_pipeline.report.terminal import aligned_table

_HEADER = ["what if", "step ms", "gain ms", "gain", "90 % interval", "ranks", "GiB", "rank-h/1e9 samples", "new model"]
_COLOURS = {False: PART_COLOURS["compute"], True: PART_COLOURS["forward_comm"]}


def advice_text(advice: Advice) -> str:
    """The best lines and the knee of every frontier as a table, how to turn them on, and the frontiers."""
    best = advice.best()
    how = ["what they cost, and how to turn them on:", *(f"  {line.what_if.name}: {_how(line)}" for line in best)]
    texts = [aligned_table(advice_rows(advice, [advice.today, *best])), "\n".join(how)]
    points = [line for of in advice.frontiers().values() for line in of]
    if points:
        texts.append(f"frontiers of smaller tables:\n{aligned_table(advice_rows(advice, points))}")
    return "\n\n".join([*texts, "\n".join(_notes(advice))])


def advice_rows(advice: Advice, lines: Sequence[Line]) -> list[list[str]]:
    """Header and one row per line."""
    rows = [_HEADER]
    for line in lines:
        cells = ["does not fit" if line.plan is None else fixed(line.step_ms, 3), *[MISSING] * 3]
        if line.gain_ms == line.gain_ms:  # not NaN
            interval = f"{line.low_gain_ms:+.3f} to {line.high_gain_ms:+.3f}"
            cells[1:] = [f"{line.gain_ms:+.3f}", f"{line.gain_ms / advice.today.step_ms:+.1%}", interval]
        costs = [MISSING] * 2 if line.plan is None else [f"{line.memory_gib:.1f}", f"{1e3 * line.rank_hours:.3f}"]
        rows.append([line.what_if.name, *cells, str(line.ranks), *costs, "yes" if line.what_if.changes_model else "no"])
    return rows


def _how(line: Line) -> str:
    return ". How: ".join(filter(None, (line.what_if.costs, line.what_if.setting)))


def _notes(advice: Advice) -> list[str]:
    """Sentences below the tables."""
    lines = [
        f"Steps are predicted, for {advice.today.samples:,} samples. Intervals take errors of parts to be mostly the "
        "same before and after. Rank-hours are those of the embedding modules alone."
    ]
    lines += [f"{line.what_if.name}: {line.problem}" for line in (advice.today, *advice.lines) if line.problem]
    lines += [
        f"Decides the plan: {doubt.text}, another plan is cheaper, by up to {fixed(doubt.saved_ms, 3)} ms. What would "
        f"settle it: {doubt.settled_by}."
        for doubt in advice.doubts
    ]
    lines += [f"Interrupted: {advice.pending} what-ifs were not planned."] if advice.pending else []
    return [*lines, *(advice.today.plan.caveats if advice.today.plan else ())]


def advice_html(advice: Advice) -> str:
    """A self-contained page with figures, tables, costs and settings."""
    best, frontiers = advice.best(), advice.frontiers().values()
    rows = advice_rows(advice, best)
    hows = ["what it costs, and how to turn it on", *map(_how, best)]
    return render_page(
        "advice.html",
        {"gains": gains_figure(best), "frontiers": frontier_figure(advice)},
        advice=advice,
        rows=[[*row, how] for row, how in zip(rows, hows, strict=True)],
        points=advice_rows(advice, [line for of in frontiers for line in of]),
        notes=_notes(advice),
    )


def gains_figure(lines: Sequence[Line]) -> go.Figure:
    """Bars of gains with their intervals; what changes the model is pale."""
    shown = [line for line in lines if line.gain_ms == line.gain_ms][::-1]
    bars = go.Bar(
        x=[line.gain_ms for line in shown],
        y=[line.what_if.name for line in shown],
        orientation="h",
        marker_color=[_COLOURS[line.what_if.changes_model] for line in shown],
        error_x={"type": "data", "array": [line.high_gain_ms - line.gain_ms for line in shown]},
    )
    figure = styled(go.Figure(bars), "Predicted gain per step", height=160 + 26 * len(shown))
    return figure.update_xaxes(title="ms by which the step is shorter; pale bars change the model")


def frontier_figure(advice: Advice) -> go.Figure:
    """Step against what tables give up, as a share of the largest point of each frontier; knees are large."""
    figure, best = go.Figure(), advice.best()
    for topic, points in advice.frontiers().items():
        x = [100 * line.what_if.given_up / points[-1].what_if.given_up for line in points]
        size = [13 if line in best else 7 for line in points]
        steps = [line.step_ms for line in points]
        figure.add_trace(go.Scatter(x=x, y=steps, name=topic, mode="lines+markers", marker={"size": size}))
    figure = styled(figure, "Step of smaller tables", height=420)
    return figure.update_xaxes(title="% of what the last point gives up").update_yaxes(title="predicted step, ms")
