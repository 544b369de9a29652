"""Output of `bench_cost_models.py` for every part: tables, the learning curve, and the aims."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from cost_model_aims import TRAINED_ON_PAPER, Aim, compute_aims, learning_aims, measured_comm_aims, table, topology_aims
from cost_model_fits import HELD_OUT, OURS, PAPER, Tables
from cost_model_inputs import CommInputs, ComputeInputs

from neuroshard_pipeline.report.style import log_axis, styled


def introduction(compute: ComputeInputs, comm: CommInputs) -> str:
    """Numbers of samples, and their noise floors."""
    chosen = len(compute.chosen["chosen"].samples) if compute.chosen else 0
    return "\n".join(
        [
            f"compute: {len(compute.data.samples)} samples, {compute.data.left_out} left out, noise floor "
            f"{in_words(compute.floors)}",
            f"shard sets of the searches' measured plans: {chosen}",
            f"communication: {len(comm.data.samples)} samples, noise floor {in_words(comm.floors)}",
        ]
    )


def in_words(floors: dict[str, float | None]) -> str:
    """Median noise floors in words."""
    return ", ".join(f"{part} {'unknown' if value is None else f'{value:.1%}'}" for part, value in floors.items())


def report_compute(noise_floor: float | None, tables: Tables) -> list[Aim]:
    """Print the errors of all models on held-out samples, chosen shards and all evaluation samples; return the aims."""
    models = pd.DataFrame(tables["models"]).drop(columns="seed").groupby(["model", "samples"], sort=False).mean()
    print(f"\nforward + backward, means over seeds\n\n{table(models)}")
    print(paper_comparison(models, pd.DataFrame(tables["paper"])))
    return _print_aims(compute_aims(models, noise_floor))


def paper_comparison(models: pd.DataFrame, paper: pd.DataFrame) -> str:
    """Errors of the paper's network and of ours, on this project's mix of samples and on those of the paper's kind.

    Args:
        models: mean figures over seeds, by model and samples.
        paper: rows of models that were trained on samples of the paper's kind only.
    """
    wide, own = (models.xs(kind, level="samples")["mape"] for kind in (HELD_OUT, TRAINED_ON_PAPER))
    return "\n".join(
        [
            "\nmean error of the paper's network on held-out samples, by the samples that it was trained and tested on",
            f"- this project's mix of tables, batch sizes, data types and optimizers, far wider than the paper's: "
            f"{wide[PAPER]:.1%} (ours {wide[OURS]:.1%})",
            f"- the paper's own kind of samples (batch size 512 for scaled-down tables, fp32, SGD, generated tables; "
            f"{paper['training'].iloc[0]} samples for training): {own[PAPER]:.1%} (ours {own[OURS]:.1%})",
            "The first figure alone does not describe the paper's results, which are about the second kind of samples.",
            "In an earlier measurement, a search used the paper's network, trained on the second kind of samples. The",
            "measured compute cost of its plans was 1.5 % higher than that of ours (15 tasks, noise 6 %), their",
            "predicted total cost 3 % higher.",
        ]
    )


def report_learning(noise_floor: float | None, out: Path, tables: Tables) -> list[Aim]:
    """Print the learning curve of both networks, write the figure, and return the aims."""
    rows = pd.DataFrame(tables["learning"])
    learning = rows.pivot_table(index="model", columns="count", values="mape", sort=False).sort_index(axis=1)
    print(f"\nlearning curve: held-out MAPE by number of training samples\n\n{table(learning)}")
    out.mkdir(parents=True, exist_ok=True)
    path = out / "cost_model_learning_curve.html"
    learning_curve(learning, noise_floor).write_html(path, include_plotlyjs=True)
    print(f"\nfigure: {path}")
    return _print_aims(learning_aims(learning))


def report_comm(floors: dict[str, float | None], tables: Tables) -> list[Aim]:
    """Print the errors on measured collectives and on the modelled cluster; return the aims."""
    measured, modelled = pd.DataFrame(tables["comm"]), pd.DataFrame(tables["topology"])
    keys = ["direction", "world size", "model"]
    print(f"\nmeasured collectives\n\n{table(measured.groupby(keys, sort=False).mean())}")
    blind = pd.DataFrame(tables["order blind"]).set_index(["direction", "ranks"])
    by_world = modelled.groupby(["direction", "ranks", "kind"], sort=False).mean()
    print(f"\nmodelled cluster\n\n{table(by_world.join(blind, on=['direction', 'ranks']))}")
    return _print_aims([*measured_comm_aims(measured, floors), *topology_aims(modelled)])


def _print_aims(aims: list[Aim]) -> list[Aim]:
    print("\n" + "\n".join(aim.line() for aim in aims) + "\n", flush=True)
    return aims


def learning_curve(learning: pd.DataFrame, noise_floor: float | None) -> go.Figure:
    """MAPE against number of training samples, one line per model.

    Args:
        learning: by model, one column per number of samples.
        noise_floor: drawn as a line if it is known.
    """
    counts = [int(count) for count in learning]
    figure = go.Figure()
    for model, values in learning.iterrows():
        figure.add_trace(go.Scatter(x=counts, y=(100 * values).tolist(), mode="lines+markers", name=str(model)))
    if noise_floor is not None:
        figure.add_hline(y=100 * noise_floor, line_dash="dot", annotation_text="noise floor (median)")
    figure.update_xaxes(log_axis(min(counts) / 1.2, max(counts) * 1.2), title_text="training samples")
    figure.update_yaxes(title_text="held-out MAPE, %", rangemode="tozero")
    return styled(figure, "Learning curve of the compute cost models", height=460)
