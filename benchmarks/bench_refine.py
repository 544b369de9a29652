"""Measures the effect of refinement: compares the measured costs of plans of the cost models before and after it.

Refinement measures the lookups and collectives of plans that searches chose with the cost models, and trains the models
again with these measurements, too. The script reads the newest pool, samples and costs of a pre-training run from the
catalog. For every seed, cost models are trained on them, refined, and compared on fresh tasks; the initial weights, the
split and all tasks depend on the seed. The plans of both pairs of models (compute and communication, before and after)
are measured together. Prints tables; nothing is written.

    .venv/bin/kedro run --pipeline pretrain
    .venv/bin/python benchmarks/bench_refine.py [--env base] [--data-root data] [--seeds 3] [--rounds 2]

It takes about six minutes per seed on 2 cores.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from measure_in_memory import measure_plans

from neuroshard_pipeline.cost_models import CostModels, train_comm_model, train_compute_model
from neuroshard_pipeline.evaluation.anchors import choose_anchors
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.comparison import Bootstrap, Comparison
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.refinement import (
    NewSamples,
    appended,
    candidate_plans,
    measure_new,
    next_round,
    training_data,
)
from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.measurement import CommCampaign, ComputeCampaign
from neuroshard_pipeline.pipelines.training_data import FIRST_CAMPAIGN
from neuroshard_pipeline.report import aligned_table
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.frames import tasks_from_frame

BEFORE, AFTER = "before", "after"
#: Number of tasks on which the models are compared, for each world size of augment.sharding_tasks.
TASKS_PER_WORLD_SIZE = (16, 8)
#: The tasks of comparisons and of refinement have different seeds: refinement adds multiples of 1000 to its seed.
COMPARISON_SEED = 500
COMPARISON = Comparison(Bootstrap(confidence=0.95, resamples=10_000, seed=0), least_tasks=5, basis="measured")


def main() -> None:
    """Print a table of prediction errors per seed, and the comparison of plans over the tasks of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration environment, as for kedro run")
    parser.add_argument("--data-root", help="data folder of the pre-training run, if not that of the environment")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of refinement per seed")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    bootstrap_project(root)
    overrides = {"data_root": arguments.data_root} if arguments.data_root else {}
    with KedroSession.create(root, env=arguments.env, runtime_params=overrides) as session:
        context = session.load_context()
        first = MeasuredSamples(*(context.catalog.load(name) for name in FIRST_CAMPAIGN.values()))
        costs = [one_seed(first, context.params, seed, arguments.rounds) for seed in range(arguments.seeds)]
        print(statements(pd.concat(costs)))


def one_seed(first: MeasuredSamples, params: Mapping[str, Any], seed: int, rounds: int) -> pd.DataFrame:
    """Train, refine and compare once; print the prediction errors and return `plan_totals` of the measured plans."""
    search, measure = params["search"], params["measure"]
    settings = SharderSettings(search["neuroshard"], search["neuroshard_plus"], search["memory"], search["rivals"])
    campaigns = Campaigns(
        ComputeCampaign(measure["compute"], measure["seed"], params["recording"]),
        CommCampaign(measure["comm"], measure["seed"], params["topology"]),
    )
    models = {BEFORE: trained(first, params["train"], seed)}
    models[AFTER] = refined(first, models[BEFORE], params, settings, campaigns, (seed, rounds))
    plan_campaigns = Campaigns(
        dataclasses.replace(campaigns.compute, params=measure["compute"].overridden(search["compute"])),
        dataclasses.replace(campaigns.comm, params=measure["comm"].overridden(search["comm"])),
    )
    plan_costs, anchors = compare(models, first, params, settings, plan_campaigns, seed)
    lines = [["seed", "models", "part", "mape", "bias", "mape net of drift"]]
    for name in models:
        own = plan_costs[plan_costs["sharder"].str.endswith(f" {name}")]
        for part, figures in prediction_errors(own, anchors=anchors).items():
            shares = [figures[key] for key in ("mape", "bias")] + [figures.get("mape_net_of_drift", float("nan"))]
            lines.append([str(seed), name, part, *(f"{100 * share:.2f} %" for share in shares)])
    print(aligned_table(lines), flush=True)
    totals = plan_totals(plan_costs)
    return totals.assign(task_id=f"seed-{seed}-" + totals["task_id"])


def refined(
    first: MeasuredSamples,
    models: CostModels,
    params: Mapping[str, Any],
    settings: SharderSettings,
    campaigns: Campaigns,
    seed_and_rounds: tuple[int, int],
) -> CostModels:
    """The models after some rounds of refinement."""
    seed, rounds = seed_and_rounds
    refine = params["refine"]["round"].model_copy(update={"seed": seed})
    known = dataclasses.replace(first, **{name: pd.DataFrame() for name in SAMPLE_FRAMES})
    for _ in range(rounds):
        tasks = refine.draw_tasks(first.table_pool, params["augment"]["sharding_tasks"], next_round(known))
        plans = candidate_plans(tasks_from_frame(tasks), models, refine, settings)
        found = NewSamples.of(plans, first.sample_ids | known.sample_ids, refine)
        anchors = choose_anchors(first, params["refine"]["anchors"])
        known = appended(known, measure_new(found, first.table_pool, campaigns, anchors), first)
        models = trained(training_data(first, known), params["train"], seed)
    return models


SAMPLE_FRAMES = [field.name for field in dataclasses.fields(MeasuredSamples)[1:]]


def compare(
    models: Mapping[str, CostModels],
    first: MeasuredSamples,
    params: Mapping[str, Any],
    settings: SharderSettings,
    campaigns: Campaigns,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the plans of all models on the same fresh tasks together; see `measure_plans`.

    Plans of one task are neighbours in each campaign, so that the machine's drift affects all models alike. Anchors are
    training samples that are measured again among the plans, to estimate the drift since the training samples.
    """
    refine = params["refine"]["round"]
    like = params["augment"]["sharding_tasks"]
    fresh = refine.model_copy(
        update={"tasks_per_world_size": TASKS_PER_WORLD_SIZE[: len(like.world_sizes)], "seed": COMPARISON_SEED + seed}
    )
    tasks = tasks_from_frame(fresh.draw_tasks(first.table_pool, like, 0))
    plans = [
        dataclasses.replace(plan, sharder=f"{plan.sharder} {name}")
        for name, pair in models.items()
        for plan in solve_all(tasks, refine.sharders, pair, settings, seed).plans
    ]
    plans.sort(key=lambda plan: plan.task.task_id)
    anchors = choose_anchors(first, params["refine"]["anchors"], {task.world_size for task in tasks})
    return measure_plans(plans, campaigns, anchors)


def trained(data: MeasuredSamples, params: Mapping[str, Any], seed: int) -> CostModels:
    """Both models with the initial weights and the split of a seed."""
    compute, comm = (params[kind].model_copy(update={"seed": seed}) for kind in ("compute", "comm"))
    lookups, *_ = train_compute_model(
        data.compute_samples, data.table_pool, data.compute_costs, compute, {}, data.compute_settings
    )
    collectives, *_ = train_comm_model(data.comm_samples, data.comm_costs, comm, {})
    return CostModels(lookups, collectives)


def statements(totals: pd.DataFrame) -> str:
    """One sentence per sharder that compares the measured plans of both pairs of models."""
    costs = totals.pivot_table(index="task_id", columns="sharder", values="measured_ms")
    sharders: Sequence[str] = sorted({name.rpartition(" ")[0] for name in costs.columns})
    return "\n".join(
        str(COMPARISON.compare(costs, f"{name} {AFTER}", f"{name} {BEFORE}")["statement"]) for name in sharders
    )


if __name__ == "__main__":
    main()
