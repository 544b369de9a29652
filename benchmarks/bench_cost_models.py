"""How good the cost models are: ours, the paper's network and two baselines on the same data and the same splits.

Reads the newest versions of a run from the catalog, prints tables and what the aims of the project make of them, and
writes the learning curve to `cost_model_learning_curve.html` in the folder `--out` (data/08_reporting).

    .venv/bin/kedro run
    .venv/bin/python benchmarks/bench_cost_models.py [--env base] [--data-root data] [--seeds 3] [--out FOLDER]

About six minutes on 2 cores for 1,200 compute samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from cost_model_aims import Aim, comm_aims, compute_aims, mean_over_seeds, table
from cost_model_fits import (
    ablation_rows,
    chosen_shard_sets,
    comm_rows,
    compute_rows,
    learning_rows,
    training_data,
)
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.cost_models.training import noise_floor_of
from neuroshard_pipeline.cost_models.training_comm import comm_data
from neuroshard_pipeline.measurement.anchors import drifts_of_parts
from neuroshard_pipeline.report.style import log_axis, styled

PARTS = ("forward", "backward", "total")


def main() -> None:
    """Print every table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration environment, as for kedro run")
    parser.add_argument("--data-root", help="where the run kept its data, if not in the environment's place")
    parser.add_argument("--seeds", type=int, default=3, help="splits and initial weights to average over")
    parser.add_argument("--out", type=Path, default=Path("data/08_reporting"), help="folder of the figure")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    bootstrap_project(root)
    overrides = {"data_root": arguments.data_root} if arguments.data_root else {}
    with KedroSession.create(root, env=arguments.env, runtime_params=overrides) as session:
        context = session.load_context()
        report(context.catalog, context.params["train"], range(arguments.seeds), arguments.out)


def report(catalog: Any, params: dict[str, Any], seeds: Sequence[int], out: Path) -> None:
    """Compute models, their learning curve, the ablation of self-distillation, communication models, and the aims."""
    floor = catalog.load("measure.hardware")["noise_floor"]
    aims = report_compute(
        catalog, params["compute"], {part: noise_floor_of(floor["compute"], part) for part in PARTS}, seeds, out
    )
    comm = comm_data(catalog.load("augment.comm_samples"), catalog.load("measure.comm_costs"))
    floors = {part: noise_floor_of(floor["comm"], part) for part in PARTS}
    print(f"\ncommunication: {len(comm.samples)} samples, noise floor {in_words(floors)}\n")
    rows = comm_rows(comm, params["comm"], seeds)
    print(table(pd.DataFrame(rows).groupby(["direction", "world size", "model"], sort=False).mean(numeric_only=True)))
    print("\naims, means over seeds\n")
    print("\n".join(aim.line() for aim in [*aims, *comm_aims(pd.DataFrame(rows), floors)]))


def report_compute(
    catalog: Any, ours: Any, floors: dict[str, float | None], seeds: Sequence[int], out: Path
) -> list[Aim]:
    """Everything about the compute model; returns its aims."""
    data, chosen = training_data(catalog), chosen_shard_sets(catalog)
    print(f"compute: {len(data.samples)} samples, {data.left_out} left out, noise floor {in_words(floors)}")
    print(f"shard sets of the searches' measured plans: {len(chosen.samples) if chosen else 0}\n")
    models = mean_over_seeds(compute_rows(data, chosen, ours, seeds))
    print(table(models))
    learning = mean_over_seeds(learning_rows(data, ours, seeds))
    print("\nlearning curve: held-out MAPE by number of training samples\n")
    print(table(learning))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "cost_model_learning_curve.html"
    learning_curve(learning, floors["total"]).write_html(path, include_plotlyjs=True)
    print(f"\nfigure: {path}\n\nself-distillation: MAPE on clean samples after training on wrong labels\n")
    print(table(mean_over_seeds(ablation_rows(data, ours, seeds))))
    fitted = drifts_of_parts(catalog.load("search.anchors")) if catalog.exists("search.anchors") else {}
    drift = {part: found.ratio - 1 for part, found in fitted.items()}
    if drift:
        shares = ", ".join(f"{part} {share:+.1%}" for part, share in drift.items())
        print(f"\ndrift between the samples' campaign and the plans': {shares}")
    return compute_aims(models, learning, floors["total"], drift)


def in_words(floors: dict[str, float | None]) -> str:
    """Median noise floors in words."""
    return ", ".join(f"{part} {'unknown' if value is None else f'{value:.1%}'}" for part, value in floors.items())


def learning_curve(learning: pd.DataFrame, noise_floor: float | None) -> go.Figure:
    """MAPE against number of training samples, one line per model.

    Args:
        learning: by model, one column `<number> samples` each.
        noise_floor: drawn as a line where it is known.
    """
    counts = [int(name.split()[0]) for name in learning]
    figure = go.Figure()
    for model, values in learning.iterrows():
        figure.add_trace(go.Scatter(x=counts, y=(100 * values).tolist(), mode="lines+markers", name=str(model)))
    if noise_floor is not None:
        figure.add_hline(y=100 * noise_floor, line_dash="dot", annotation_text="noise floor (median)")
    figure.update_xaxes(log_axis(min(counts) / 1.2, max(counts) * 1.2), title_text="training samples")
    figure.update_yaxes(title_text="held-out MAPE, %", rangemode="tozero")
    return styled(figure, "Learning curve of the compute cost models", height=460)


if __name__ == "__main__":
    main()
