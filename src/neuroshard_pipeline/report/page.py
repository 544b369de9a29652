"""Self-contained HTML pages: one file holds everything, so that it can be opened from disk, mailed or printed."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go

from neuroshard_pipeline.evaluation.comparison import OURS

#: Smallest widths of figures with several panels. On a phone they scroll sideways instead of shrinking.
_MIN_WIDTHS_PX = dict.fromkeys(("rank_accuracy", "held_out_accuracy", "tiers"), 930)
#: Largest widths of figures that are easier to read if they do not fill the whole column.
_MAX_WIDTHS_PX = {"plan_accuracy": 660}
#: Height of a figure's title. It is removed from the figure, because the page shows the title as a heading.
_TITLE_PX = 40


def render_page(template: str, figures: Mapping[str, go.Figure], **context: Any) -> str:
    """One self-contained page from a template file, whose variables are `context`, with style, script and Plotly."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        css=asset("report.css"),
        script=asset("report.js"),
        # `plotly.offline` would import IPython.
        plotly_js=resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8"),
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        ours=OURS,
        drawings={name: _drawing(name, figure) for name, figure in figures.items()},
        **context,
    )


def _drawing(name: str, figure: go.Figure) -> dict[str, str]:
    """The figure for the templates: `name`, `title`, `size` as CSS, and `spec`, its data and layout as JSON.

    The title is taken out of the figure: as a heading of the page it can wrap on a narrow screen.
    """
    spec = json.loads(figure.to_json())
    layout = spec["layout"]
    title = layout.pop("title")["text"]
    layout["margin"]["t"] -= _TITLE_PX
    layout["height"] -= _TITLE_PX
    sizes = {"height": layout["height"], "min-width": _MIN_WIDTHS_PX.get(name), "max-width": _MAX_WIDTHS_PX.get(name)}
    size = "; ".join(f"{key}: {value}px" for key, value in sizes.items() if value)
    # "</script>" inside a name would end the script element that holds the data.
    text = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    return {"name": name, "title": title, "size": size, "spec": text}


def asset(name: str) -> str:
    """The text of a file of this package, such as a template."""
    return resources.files("neuroshard_pipeline.report").joinpath(name).read_text(encoding="utf-8")
