"""Draws the figures of docs/tiers.md: popularity curves with the cuts between tiers, and what crosses which wire.

    python scripts/tiers_figures.py        # writes docs/images/tiers_curve.svg and docs/images/tiers_wires.svg

The curves are those of benchmarks/tiers/row_popularity.py for a table of 4 million rows. The figures hold no
measurement.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "tiers"))

from row_popularity import row_popularity

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
ROWS = 4_000_000
#: Ends of the hot and the host tier of the figure, as shares of the rows.
CUTS = (0.0005, 0.02)
INK, MUTED, GRID = "#1f2933", "#66737f", "#e4e7eb"
TIER_COLOURS = {"hot": "#a04a26", "host": "#e3b778", "cold": "#7ba7cf"}
CURVE_COLOURS = {"steep": "#8F2D00", "published": "#0a5c8f", "flat": "#2e8b74"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def svg(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """A figure with a white background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{FONT}" font-size="13" fill="{INK}">'
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{MUTED}"/></marker></defs>'
    )
    ground = f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{title}</title>", tip, ground, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str = "start", **style: str) -> str:
    """A line of text."""
    options = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{options}>{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, **style: str) -> str:
    """A rectangle."""
    options = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{options}/>'


def line(points: str, colour: str, width: float = 1.0, more: str = "") -> str:
    """A path without filling."""
    return f'<path d="{points}" fill="none" stroke="{colour}" stroke-width="{width:g}"{more}/>'


def curve_figure() -> str:
    """Share of the ids over share of the rows, hottest first, for three popularities."""
    left, right, top, bottom = 70.0, 560.0, 50.0, 290.0
    octaves = 6.0  # the axis begins at one millionth of the rows

    def x_of(share: float) -> float:
        return left + (right - left) * (np.log10(share) + octaves) / octaves

    def y_of(share: float) -> float:
        return bottom - (bottom - top) * share

    ends = (10**-octaves, *CUTS, 1.0)
    parts = [text(24, 28, "Which share of the ids do the most popular rows get?", font_size="15", font_weight="700")]
    for (kind, colour), first, last in zip(TIER_COLOURS.items(), ends[:-1], ends[1:], strict=True):
        parts.append(box(x_of(first), top, x_of(last) - x_of(first), bottom - top, colour, opacity="0.22"))
        parts.append(text((x_of(first) + x_of(last)) / 2, top - 6, kind, "middle", font_weight="700"))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(f"M{left:g} {y_of(share):g}H{right:g}", GRID))
        parts.append(text(left - 8, y_of(share) + 4, f"{100 * share:g} %", "end", fill=MUTED, font_size="12"))
    for power in range(-6, 1):
        label = f"{100 * 10.0**power:g} %"
        parts.append(text(x_of(10.0**power), bottom + 18, label, "middle", fill=MUTED, font_size="12"))
    parts.append(
        text((left + right) / 2, bottom + 38, "share of the table's rows, hottest first", "middle", fill=MUTED)
    )
    shares = np.geomspace(10**-octaves, 1.0, 200)
    for name, colour in CURVE_COLOURS.items():
        popularity = row_popularity(name, ROWS)
        points = [f"{x_of(share):.1f} {y_of(popularity.share_of(share * ROWS)):.1f}" for share in shares]
        parts.append(line("M" + "L".join(points), colour, 2.5))
    legend = {"steep": "steep: Zipf, exponent 1.2", "published": "published skew", "flat": "flat: Zipf, exponent 0.7"}
    for number, (name, words) in enumerate(legend.items()):
        y = top + 60 + 24 * number
        parts.append(line(f"M{right + 16:g} {y - 4:g}h20", CURVE_COLOURS[name], 2.5))
        parts.append(text(right + 42, y, words))
    return svg("Popularity curves of three distributions, with the two cuts between three tiers", 780, 345, parts)


def wires_figure() -> str:
    """Two hosts with two ranks each, the tiers that they hold, and what crosses which wire."""
    parts = [text(24, 28, "Where the rows of one table are", font_size="15", font_weight="700")]
    for host in range(2):
        x = 30 + 385 * host
        parts.append(box(x, 46, 335, 190, "#f5f7fa", rx="8", stroke=GRID))
        parts.append(text(x + 14, 68, f"host {host}", font_weight="700"))
        for rank in range(2):
            parts += _rank(x + 14 + 157 * rank, 80, 2 * host + rank)
        parts.append(line(f"M{x + 152:g} 163h18", MUTED, 1.5, ' marker-start="url(#tip)" marker-end="url(#tip)"'))
    parts.append(line("M367 200h46", MUTED, 1.5, ' marker-start="url(#tip)" marker-end="url(#tip)"'))
    words = {
        "hot": "on every rank. No ids, no rows on any wire; gradients of all hot rows are added up over all ranks.",
        "host": "on every host, spread over its ranks. Ids and rows stay inside the host; gradients cross hosts.",
        "cold": "on one rank. Ids, rows and gradients of the rows that are looked up cross hosts.",
    }
    for number, (kind, sentence) in enumerate(words.items()):
        y = 264 + 26 * number
        parts += [
            box(30, y - 12, 16, 16, TIER_COLOURS[kind]),
            text(54, y, kind, font_weight="700"),
            text(94, y, sentence),
        ]
    return svg(
        "Two hosts with two ranks each: hot rows on every rank, host rows on every host, cold rows once",
        780,
        336,
        parts,
    )


def _rank(x: float, y: float, rank: int) -> list[str]:
    """The tiers of one rank: all hot rows, its half of the host rows, its quarter of the cold rows."""
    names = {"hot": "hot rows", "host": f"host rows, part {rank % 2}", "cold": f"cold rows, part {rank}"}
    heights = {"hot": 34, "host": 34, "cold": 50}
    parts = [text(x, y + 12, f"rank {rank}", fill=MUTED)]
    y += 20
    for kind, height in heights.items():
        parts.append(box(x, y, 138, height, TIER_COLOURS[kind], rx="3"))
        colour = "#ffffff" if kind == "hot" else INK
        parts.append(text(x + 69, y + height / 2 + 5, names[kind], "middle", fill=colour))
        y += height + 4
    return parts


def main() -> None:
    """Write both figures."""
    (IMAGES / "tiers_curve.svg").write_text(curve_figure(), encoding="utf-8")
    (IMAGES / "tiers_wires.svg").write_text(wires_figure(), encoding="utf-8")


if __name__ == "__main__":
    main()
