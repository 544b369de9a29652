"""The common style of all figures: a colour per sharder, a colour per part of the cost, one Plotly template.

Six sharders have colours of Okabe and Ito, "Color Universal Design" (2008). People with any common form of colour
blindness can distinguish these six.
"""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.search.explain import PART_NAMES as PART_NAMES

INK = "#1f2933"
MUTED = "#66737f"
GRID = "#e4e7eb"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_SHARDER_COLOURS = {
    "neuroshard": "#D55E00",
    "neuroshard_plus": "#8F2D00",
    "size_lookup_greedy": "#CC79A7",
    "lookup_greedy": "#009E73",
    "dim_greedy": "#56B4E9",
    "size_greedy": "#0072B2",
    "torchrec": "#E69F00",
    "embark": "#7a5c2e",
    "milp": "#4b5ba8",
    "autoshard": "#b3a100",
    "dreamshard": "#2b2b2b",
    "random": "#8c96a0",
}
#: Colours of sharders without an entry above, assigned in alphabetical order of the names.
_SPARE_COLOURS = ("#6b8e9e", "#a05195", "#5c7a29", "#9e4b4b")

#: Parts of a step, in the order in which they are stacked.
PART_COLOURS = {
    "compute": "#33476b",
    "backward_comm": "#7ba7cf",
    "forward_comm": "#e3b778",
    "reduction": "#a8563f",
    "input_dist": "#5f9068",
    "module": "#a99bc0",
}
#: What ranks send (`search.volumes.KINDS`).
KIND_COLOURS = {
    "ids": PART_COLOURS["input_dist"],
    "outputs": PART_COLOURS["forward_comm"],
    "reductions": PART_COLOURS["reduction"],
}

#: A thin dotted line that marks a reference value.
REFERENCE_LINE = {"color": INK, "width": 1, "dash": "dot"}

#: Largest number of rows that `thinned` keeps; more points in a scatter plot would only make the page's file larger.
MAX_POINTS = 1200


def sharder_colours(sharders: Iterable[str]) -> dict[str, str]:
    """A colour for every name; a known sharder has the same colour in every figure."""
    names = list(dict.fromkeys(sharders))
    spare = iter(_SPARE_COLOURS * (1 + len(names) // len(_SPARE_COLOURS)))
    unknown = {name: next(spare) for name in sorted(set(names) - set(_SHARDER_COLOURS))}
    return {name: _SHARDER_COLOURS.get(name) or unknown[name] for name in names}


def emphasised(sharder: str) -> str:
    """The name as HTML; sharders of this project are bold."""
    return f"<b>{sharder}</b>" if sharder in OURS else sharder


def bar_colour(sharder: str, colour: str) -> str:
    """The fill of a sharder's bar: strong for sharders of this project, pale for the others."""
    return faded(colour, 0.85 if sharder in OURS else 0.45)


def faded(colour: str, opacity: float) -> str:
    """`#rrggbb` as an `rgba()` of the given opacity."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Every n-th row of `frame`, with the smallest n that leaves at most `MAX_POINTS` rows."""
    return frame.iloc[:: max(math.ceil(len(frame) / MAX_POINTS), 1)]


def rounded(values: Iterable[float]) -> list[float]:
    """The values with four significant digits: enough for a figure, and the page stays small."""
    return [float(f"{value:.4g}") for value in values]


def styled(figure: go.Figure, title: str, *, height: int) -> go.Figure:
    """The figure with the project's template, a title and a height in pixels; the width follows the page."""
    figure.update_layout(
        template=_TEMPLATE, title={"text": title}, height=height, margin={"t": 84, "l": 64, "r": 20, "b": 56}
    )
    return figure


def empty_figure(title: str, reason: str) -> go.Figure:
    """A figure without data that states why there is none."""
    figure = styled(go.Figure(), title, height=200)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return with_message(figure, reason)


def with_message(figure: go.Figure, text: str) -> go.Figure:
    """The figure with a text in its centre."""
    figure.add_annotation(text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Settings of a logarithmic axis from `low` to `high`. The shorter the axis, the more labels a decade has."""
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7) if high < 6 * low else (1, 2, 5) if high < 300 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [_tick_text(tick) for tick in ticks],
    }


def short_number(value: float) -> str:
    """The value with at most three significant digits, such as `980`, `56k` or `2.9M`."""
    for suffix, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * unit:
            return f"{value / unit:.{1 if value < 10 * unit else 0}f}{suffix}"
    return f"{value:.0f}"


def _tick_text(tick: float) -> str:
    """The label of a tick, such as `0.02`, `50`, `20k` or `1M`."""
    for suffix, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tick >= unit:
            return f"{tick / unit:.3g}{suffix}"
    return f"{tick:.4g}"


_AXIS = {
    "gridcolor": GRID,
    "linecolor": "#b8c0c8",
    "zeroline": False,
    "showline": True,
    "ticks": "outside",
    "ticklen": 4,
    "tickcolor": "#b8c0c8",
    "title": {"standoff": 10, "font": {"size": 13, "color": MUTED}},
    "automargin": True,
}

_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {"x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8}, "font": {"size": 16}},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "bargap": 0.3,
        "colorway": ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"],
    }
)
