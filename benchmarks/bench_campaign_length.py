"""Compares the measured costs of plans whose cost models were trained on different campaigns, on the same tasks.

    make run && make run ENV=thorough                      # two versions of the cost models in data/06_models
    OMP_NUM_THREADS=1 python benchmarks/bench_campaign_length.py [--campaigns 2]
    OMP_NUM_THREADS=1 python benchmarks/bench_campaign_length.py --models busy=other/06_models quiet=data/06_models

A campaign measures a set of samples or plans. The models of `make run` are trained on a short campaign, those of
`make run ENV=thorough` on a long one; without `--models`, the newest of each kind in `--data` are compared. With
`--models`, any cost models are compared with those that the list names last. An entry of the list is `name=folder`, or
`name=folder:version` if the version is not the newest.
`neuroshard_plus` plans every task with each of them. All plans are measured together, in chunks whose order is random,
and timed as often as in the environment `thorough`. The interval is a paired 95 % bootstrap confidence interval of the
ratio of mean costs.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from bench_plus_measured import ROOT, campaigns_of_conf, embedding_costs, newest
from measure_in_memory import measure_plans
from tqdm import tqdm

from neuroshard_pipeline.cost_models.models import CostModels, load_cost_models
from neuroshard_pipeline.evaluation.comparison import Bootstrap
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables import tasks_from_frame

SHARDER = "neuroshard_plus"
BOOTSTRAP = Bootstrap(confidence=0.95, resamples=10_000, seed=0)


def versions_in(data: Path) -> tuple[str, str]:
    """Two versions of the cost models: the newest one with the fewest samples, and the newest one with the most.

    Raises:
        SystemExit: all versions have the same number of samples.
    """
    folders = sorted((data / "06_models" / "compute_cost_model").iterdir())
    sizes = {folder.name: num_samples(data, folder.name) for folder in folders}
    short, long = min(sizes.values(), default=0), max(sizes.values(), default=0)
    if short == long:
        raise SystemExit(f"{data}/06_models has no models of two campaigns; run `make run` and `make run ENV=thorough`")
    newest_of = {size: version for version, size in sizes.items()}
    return newest_of[short], newest_of[long]


def num_samples(data: Path, version: str) -> int:
    """Number of compute samples that were measured for a version of the compute cost model."""
    model = load_cost_models(data / "06_models", version).compute
    origin = model.provenance["data_versions"]["augment.compute_samples"]
    samples = pd.read_parquet(data / "03_primary" / "compute_samples.parquet" / origin / "compute_samples.parquet")
    return int(samples["sample_id"].nunique())


def plans_of(models: CostModels, name: str, data: Path) -> list[Plan]:
    """The plans of the tasks in `data` with these models; the plans carry `name` as their sharder."""
    tasks = tasks_from_frame(pd.read_parquet(newest(data / "03_primary" / "sharding_tasks.parquet")))
    plans = solve_all(tasks, [SHARDER], models, SharderSettings(), 0, lambda each: tqdm(each, name, disable=None)).plans
    return [replace(plan, sharder=name) for plan in plans]


def of_lengths(data: Path) -> dict[str, CostModels]:
    """The cost models `short` and `thorough` of one data folder (`versions_in`)."""
    versions = dict(zip(("short", "thorough"), versions_in(data), strict=True))
    for name, version in versions.items():
        print(f"{name}: models {version}, {num_samples(data, version)} compute samples")
    return {name: load_cost_models(data / "06_models", version) for name, version in versions.items()}


def of_argument(text: str) -> tuple[str, CostModels]:
    """Name and cost models of one argument of `--models`."""
    name, _, place = text.partition("=")
    folder, _, version = place.partition(":")
    return name, load_cost_models(folder, version or None)


def main() -> None:
    """Print the mean cost of each model's plans, its ratio to the last mean with an interval, and the noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="data folder of the tasks, and of the models")
    parser.add_argument("--models", nargs="+", type=of_argument, help="cost models to compare, name=folder[:version]")
    parser.add_argument("--campaigns", type=int, default=2, help="number of measurements of every plan")
    arguments = parser.parse_args()
    models = dict(arguments.models) if arguments.models else of_lengths(arguments.data)
    plans = [plan for name, of in models.items() for plan in plans_of(of, name, arguments.data)]
    campaigns = campaigns_of_conf("thorough")
    rounds = [embedding_costs(measure_plans(plans, campaigns)[0], "measured") for _ in range(arguments.campaigns)]
    costs = (sum(rounds[1:], start=rounds[0]) / len(rounds)).dropna()
    *others, base = models
    print(f"{len(costs)} tasks, {len(rounds)} campaigns; {base}: {costs[base].mean():.3f} ms")
    for name in others:
        ratio = BOOTSTRAP.ratio_of_means(costs[name].to_numpy(), costs[base].to_numpy())
        print(
            f"{name}: {costs[name].mean():.3f} ms, {ratio.value - 1:+.1%} against {base} "
            f"[{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]"
        )
    if len(rounds) > 1:
        repeat = np.nanmedian((rounds[1] / rounds[0] - 1).abs())
        print(f"noise: two measurements of a plan differ by {repeat:.1%} (median)")


if __name__ == "__main__":
    main()
