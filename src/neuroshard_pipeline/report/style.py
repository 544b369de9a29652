"""One look for every figure: a colour per sharder, a colour per part of the cost, one Plotly template.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), which people with any common form of colour
blindness tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

#: The sharders that this project is about; figures draw them in the strongest colours.
OURS: tuple[str, ...] = ("neuroshard", "neuroshard_plus")

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
#: For sharders that this file has never heard of, in the order of their names.
_SPARE_COLOURS = ("#6b8e9e", "#a05195", "#5c7a29", "#9e4b4b")

#: Parts of the embedding cost, in the order in which they are stacked.
PART_COLOURS = {"compute": "#33476b", "backward_comm": "#7ba7cf", "forward_comm": "#e3b778"}
PART_NAMES = {
    "compute": "compute",
    "backward_comm": "backward communication",
    "forward_comm": "forward communication",
}
DIRECTION_COLOURS = {"forward": "#0072B2", "backward": "#E69F00"}


def sharder_colours(sharders: Iterable[str]) -> dict[str, str]:
    """A colour for every name; a known sharder has the same one in every figure."""
    names = list(dict.fromkeys(sharders))
    spare = iter(_SPARE_COLOURS * (1 + len(names) // len(_SPARE_COLOURS)))
    strangers = {name: next(spare) for name in sorted(set(names) - set(_SHARDER_COLOURS))}
    return {name: _SHARDER_COLOURS.get(name) or strangers[name] for name in names}


def emphasised(sharder: str) -> str:
    """The name as HTML, bold where it is ours."""
    return f"<b>{sharder}</b>" if sharder in OURS else sharder


def bar_colour(sharder: str, colour: str) -> str:
    """The fill of a sharder's bar: full for ours, pale for the others."""
    return faded(colour, 0.85 if sharder in OURS else 0.45)


def faded(colour: str, opacity: float) -> str:
    """`#rrggbb` as an `rgba()` of the given opacity."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def styled(figure: go.Figure, title: str, *, height: int) -> go.Figure:
    """The figure with the project's template, its title and a height in pixels; the width follows the page."""
    figure.update_layout(
        template=_TEMPLATE, title={"text": title}, height=height, margin={"t": 84, "l": 64, "r": 20, "b": 56}
    )
    return figure


def words(title: str, text: str) -> go.Figure:
    """A figure that has nothing to draw, and says why."""
    figure = styled(go.Figure(), title, height=200)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return say(figure, text)


def say(figure: go.Figure, text: str) -> go.Figure:
    """The figure with words in its middle."""
    figure.add_annotation(text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Settings of a logarithmic axis from `low` to `high`, with labels 1, 2, 5, 10 ... in decimal notation."""
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7) if high < 6 * low else (1, 2, 5) if high < 300 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [_short(tick) for tick in ticks],
    }


def _short(tick: float) -> str:
    """`0.02`, `50`, `20k`, `1M`."""
    for suffix, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tick >= unit:
            return f"{tick / unit:.0f}{suffix}"
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
