"""Draws docs/images/training_step.svg: where the time of training steps goes, from summaries of train_check.

    python scripts/training_figure.py data/08_reporting/train_check_summary.json/*/train_check_summary.json

Every bar is the step of one model and dense mode under the plan of `neuroshard_plus`, a mean over the ranks.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tiers_figures import INK, MUTED, box, svg, text

from neuroshard_pipeline.torchrec_bridge.train_check.run import PARTS

IMAGE = Path(__file__).resolve().parents[1] / "docs" / "images" / "training_step.svg"
COLOURS = ("#0a5c8f", "#e3b778", "#a04a26", "#7ba7cf", "#66737f")
NAMES = ("embeddings forward", "dense forward", "dense backward", "embeddings backward", "optimizer")
LEFT, BAR, GAP, WIDTH = 230, 20, 10, 460


def figure(rows: list[dict[str, Any]]) -> str:
    """Horizontal bars on one scale of milliseconds."""
    longest = max(sum(row[part] for part in PARTS) for row in rows)
    parts = []
    for at, (name, colour) in enumerate(zip(NAMES, COLOURS, strict=True)):
        x, y = 20 + 235 * (at % 3), 20 + 22 * (at // 3)
        parts += [box(x, y, 14, 14, colour, rx="2"), text(x + 20, y + 12, name)]
    for at, row in enumerate(rows):
        x, y = float(LEFT), 80 + at * (BAR + GAP)
        label = ", ".join(filter(None, (row["network"], row["model"], row["dense"])))
        parts.append(text(LEFT - 10, y + 15, label, "end", fill=INK))
        for part, colour in zip(PARTS, COLOURS, strict=True):
            width = WIDTH * row[part] / longest
            parts.append(box(round(x, 1), y, round(width, 1), BAR, colour))
            x += width
        parts.append(text(round(x + 6, 1), y + 15, f"{sum(row[part] for part in PARTS):.1f} ms", fill=MUTED))
    return svg("Where the time of a training step goes", LEFT + WIDTH + 80, 90 + len(rows) * (BAR + GAP), parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("summaries", nargs="+", type=Path, help="train_check_summary.json of one or several runs")
    parser.add_argument("--sharder", default="neuroshard_plus")
    given = parser.parse_args()
    speeds = [row for path in given.summaries for row in json.loads(path.read_text(encoding="utf-8"))["speeds"]]
    chosen = [row for row in speeds if row["sharder"] == given.sharder]
    if not chosen:
        parser.error(f"no summary has a plan of {given.sharder}")
    IMAGE.write_text(figure(chosen), encoding="utf-8")
