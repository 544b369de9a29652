"""What refinement is worth: before and after, over several seeds.

Reads the newest pool, samples and costs of a pre-training run from the catalog. For every seed, cost models are
trained on them, refined, and judged on fresh tasks: initial weights, split, and the tasks of the rounds and of the
judging all follow the seed. Prints tables; nothing is written.

    .venv/bin/kedro run --pipeline pretrain
    .venv/bin/python benchmarks/bench_refine.py [--env base] [--data-root data] [--seeds 3]

About six minutes per seed on 2 cores.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.cost_models import train_comm_model, train_compute_model
from neuroshard_pipeline.evaluation.refinement import (
    Campaigns,
    Trained,
    TrainingSet,
    judge_plans,
    refine_models,
    summarise_refinement,
    train_both,
)
from neuroshard_pipeline.evaluation.refinement.summary import AFTER, BEFORE, mean_with_interval
from neuroshard_pipeline.measurement import measure_comm, measure_compute
from neuroshard_pipeline.report import refinement_table
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.frames import tasks_from_frame

#: The pairs of models that are compared.
MODELS = (BEFORE, AFTER)


def main() -> None:
    """Print the tables of every seed, and what they have in common."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration environment, as for kedro run")
    parser.add_argument("--data-root", help="where the run kept its data, if not in the environment's place")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    bootstrap_project(root)
    overrides = {"data_root": arguments.data_root} if arguments.data_root else {}
    with KedroSession.create(root, env=arguments.env, runtime_params=overrides) as session:
        context = session.load_context()
        summaries = []
        for seed in range(arguments.seeds):
            summaries.append(one_seed(context.catalog, context.params, seed))
            print(f"seed {seed}\n\n{refinement_table(summaries[-1])}\n", flush=True)
        print(over_seeds(summaries))


def one_seed(catalog: Any, params: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train, refine and judge once."""
    names = (
        "augment.table_pool",
        "augment.compute_samples",
        "augment.compute_sample_settings",
        "measure.compute_costs",
    )
    first = TrainingSet(*(catalog.load(name) for name in (*names, "augment.comm_samples", "measure.comm_costs")))
    search, measure, refine = params["search"], params["measure"], params["refine"]
    settings = SharderSettings(search["neuroshard"], search["neuroshard_plus"], search["memory"])
    rounds = refine["rounds"].model_copy(update={"seed": 1000 + 2 * seed})
    judging = refine["judging"].model_copy(update={"seed": 1001 + 2 * seed})
    before = trained(first, params["train"], seed)
    like = params["augment"]["sharding_tasks"]
    tasks = tasks_from_frame(rounds.draw(first.table_pool, like, "refine-"))
    refined = refine_models(
        before.models, tasks, rounds, settings, campaigns(first, measure, params),
        lambda data: trained(data, params["train"], seed),
    )  # fmt: skip
    judged = judge_plans(
        {BEFORE: before.models, AFTER: refined.trained.models},
        tasks_from_frame(judging.draw(first.table_pool, like, "judge-")),
        judging,
        settings,
        campaigns(first, {**search, "seed": measure["seed"]}, params),
    )
    return summarise_refinement(refined.history, judged, f"seed {seed}")


def trained(data: TrainingSet, params: dict[str, Any], seed: int) -> Trained:
    """Both models with initial weights and split of a seed."""
    compute, comm = (params[kind].model_copy(update={"seed": seed}) for kind in ("compute", "comm"))
    return train_both(
        data,
        partial(train_compute_model, params=compute, provenance={}),
        lambda *frames: train_comm_model(*frames, comm, {}),
    )


def campaigns(first: TrainingSet, measure: dict[str, Any], params: dict[str, Any]) -> Campaigns:
    """Campaigns with the parameters of a stage, but for extra visits and replicas, which take time."""
    regular = {"extra_visit_budget_s": 0.0, "noise_floor_share": 0.0}
    compute, comm = (measure[kind].model_copy(update=regular) for kind in ("compute", "comm"))
    return Campaigns(
        first,
        lambda samples: measure_compute(samples, compute, measure["seed"], params["recording"]),
        lambda samples: measure_comm(samples, comm, measure["seed"], params["topology"]),
    )


def over_seeds(summaries: list[dict[str, Any]]) -> str:
    """Means and extremes of the seeds, and the change of plan costs over the tasks of all seeds."""
    lines = [f"over {len(summaries)} seeds: mean (lowest to highest)", ""]
    for part in ("compute", "comm_forward", "comm_backward"):
        for side in ("chosen", "all"):
            told = [spread([summary["errors"][name][side][part]["mape"] for summary in summaries]) for name in MODELS]
            lines.append(f"mean error on {side} samples, {part}: before {told[0]}, after {told[1]}")
    for sharder in summaries[0]["plans"]:
        plans = [summary["plans"][sharder] for summary in summaries]
        changes = np.array([change for plan in plans for change in plan["changes"].values()])
        low, high = (100 * edge for edge in mean_with_interval(changes)["interval"])
        means = [np.mean([plan[f"{name}_ms"] for plan in plans]) for name in MODELS]
        lines.append(
            f"measured plan cost, {sharder}: before {means[0]:.3f} ms, after {means[1]:.3f} ms; change "
            f"{spread([plan['change'] for plan in plans])}; over all {len(changes)} tasks "
            f"{100 * changes.mean():+.2f} %, 95 % interval {low:+.2f} to {high:+.2f} %"
        )
    return "\n".join(lines)


def spread(shares: list[float]) -> str:
    """Mean, lowest and highest in percent."""
    values = 100 * np.array(shares)
    return f"{values.mean():.2f} % ({values.min():.2f} to {values.max():.2f})"


if __name__ == "__main__":
    main()
