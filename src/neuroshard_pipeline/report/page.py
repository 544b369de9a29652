"""Self-contained HTML pages: everything is inside one file that can be opened from disk, mailed or printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from neuroshard_pipeline.evaluation.comparison import OURS

#: Figures that are unreadable below this width; on a phone they scroll sideways instead of shrinking.
_MIN_WIDTHS_PX = {
    "rank_accuracy": 930,
    "held_out_accuracy": 930,
    "errors_by_feature": 930,
    "calibration": 930,
    "cost_distributions": 620,
    "measurement_noise": 620,
    "reuse_comparison": 620,
    "pool_distributions": 620,
}
#: Figures that are easier to read if they do not fill the whole column.
_MAX_WIDTHS_PX = {"plan_accuracy": 660}
#: Height of a figure's title; on the page the title is a heading instead.
_TITLE_PX = 40


@dataclass(frozen=True)
class Drawing:
    """A figure in the form that the templates use.

    Attributes:
        name: its name and HTML id.
        title: its heading.
        spec: data and layout for Plotly, as JSON.
        height_px: its height.
        min_width_px: its smallest width; 0 for no limit.
        max_width_px: its largest width; 0 for no limit.
    """

    name: str
    title: str
    spec: str
    height_px: int
    min_width_px: int
    max_width_px: int


def render_page(template: str, figures: Mapping[str, go.Figure], **context: Any) -> str:
    """One self-contained page from a template, with style, script and Plotly inside.

    Args:
        template: file name of the template.
        figures: all figures of the page by name.
        **context: variables of the template.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        css=_asset("report.css"),
        script=_asset("report.js"),
        plotly_js=get_plotlyjs(),
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        ours=OURS,
        drawings={name: _drawing(name, figure) for name, figure in figures.items()},
        **context,
    )


def _drawing(name: str, figure: go.Figure) -> Drawing:
    """Take the title out of the figure: as a heading of the page it can wrap on a narrow screen."""
    spec = json.loads(figure.to_json())
    title = spec["layout"].pop("title")["text"]
    spec["layout"]["margin"]["t"] -= _TITLE_PX
    spec["layout"]["height"] -= _TITLE_PX
    # "</script>" inside a name would end the script element that holds the data.
    text = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    widths_px = _MIN_WIDTHS_PX.get(name, 0), _MAX_WIDTHS_PX.get(name, 0)
    return Drawing(name, title, text, spec["layout"]["height"], *widths_px)


def _asset(name: str) -> str:
    return resources.files("neuroshard_pipeline.report").joinpath(name).read_text(encoding="utf-8")
