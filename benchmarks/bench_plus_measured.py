"""Compares the measured costs of plans of `neuroshard` with those after local searches of several numbers of rounds.

    OMP_NUM_THREADS=1 python benchmarks/bench_plus_measured.py                 # after `make run`; about 4 minutes
    OMP_NUM_THREADS=1 python benchmarks/bench_plus_measured.py --campaigns 3   # narrower intervals

A campaign measures the cost of every plan. The plans of one task are measured at about the same time, so that the
machine's drift affects every sharder alike. Ranks with equal shards are measured once. Intervals are 95 % bootstrap
confidence intervals of the mean relative difference between two plans of a task. The local search is that of
`neuroshard_plus` without a step cost model: it changes column shards, and minimises the cost of lookups and
all-to-alls.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from measure_in_memory import measure_plans
from omegaconf import OmegaConf
from tqdm import tqdm

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.measurement import (
    CommCampaign,
    CommMeasureParams,
    CommOverrides,
    ComputeCampaign,
    ComputeMeasureParams,
    ComputeOverrides,
)
from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.tables.task import ShardingTask

ROOT = Path(__file__).resolve().parent.parent

#: By the name of a variant, parameters of the local search; they replace those of conf/base/parameters_search.yml.
Variants = Mapping[str, Mapping[str, float]]

VARIANTS: Variants = {
    "plus, 25 rounds": {"max_rounds": 25},
    "plus, 100 rounds": {"max_rounds": 100},
    "plus, 400 rounds": {"max_rounds": 400},
}


def newest(folder: Path) -> Path:
    """The file of the newest version of a dataset."""
    return sorted(folder.iterdir())[-1] / folder.name


def plans_of(tasks: Sequence[ShardingTask], models: Models, variants: Variants) -> list[Plan]:
    """The plan of `neuroshard` and of every variant for every task."""
    settings, plans = SharderSettings(), []
    for task in tqdm(tasks, desc="search", unit="task", disable=None):
        problem = Problem(task, models, settings.memory)
        start = beam_search(problem, settings.search)[0]
        found = {"neuroshard": start}
        for name, changes in variants.items():
            params = settings.local_search.model_copy(update=changes)
            found[name] = local_search(start, problem, params, np.random.default_rng(0))[0]
        plans += [price_plan(problem, problem.placement(s.kinds, s.ranks), name) for name, s in found.items()]
    return plans


def campaigns_of_conf(environment: str = "base") -> Campaigns:
    """The campaigns with which the search stage of an environment measures plans, on this host only."""
    files = [ROOT / f"conf/base/parameters_{stage}.yml" for stage in ("measure", "search")]
    if environment != "base":
        files.append(ROOT / f"conf/{environment}/parameters.yml")
    conf: Any = OmegaConf.to_container(OmegaConf.merge(*map(OmegaConf.load, files)))
    alone = {"local_world_size": None, "torchrun_endpoint": None}
    compute, comm = (conf["measure"][kind] for kind in ("compute", "comm"))
    compute_params = ComputeMeasureParams(**compute).overridden(ComputeOverrides(**conf["search"]["compute"]))
    comm_params = CommMeasureParams(**comm | alone).overridden(CommOverrides(**conf["search"]["comm"]))
    seed = conf["measure"]["seed"]
    return Campaigns(ComputeCampaign(compute_params, seed), CommCampaign(comm_params, seed))


def embedding_costs(plan_costs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Embedding costs by task (row) and sharder (column), NaN where a plan has none of this kind.

    Args:
        plan_costs: `search.plan_costs`.
        kind: `measured`, or `predicted` for the predicted cost of the parts that are measured.
    """
    return plan_totals(plan_costs).pivot_table(
        index="task_id", columns="sharder", values=f"{kind}_ms", aggfunc="max", dropna=False
    )


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap confidence interval of the mean."""
    rng = np.random.default_rng(0)
    means = rng.choice(differences, (4000, len(differences))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def compare_measured(data: Path, variants: Variants, campaigns: int = 1, num_tasks: int | None = None) -> None:
    """Search plans for the tasks of a run with its models, measure the plans, and print one line per sharder."""
    tasks = tasks_from_frame(pd.read_parquet(newest(data / "03_primary/sharding_tasks.parquet")))
    plans = plans_of(tasks[:num_tasks], load_cost_models(data / "06_models"), variants)
    rounds = []
    for _ in range(campaigns):
        rounds.append(measure_plans(plans, campaigns_of_conf())[0])
        report(rounds, [*variants])


def report(rounds: list[pd.DataFrame], names: list[str]) -> None:
    """Print one line per sharder, with means over the campaigns so far."""
    costs = sum(embedding_costs(costs, "measured") for costs in rounds) / len(rounds)
    kept = costs.dropna()
    predicted = embedding_costs(rounds[0], "predicted").loc[kept.index]
    by_plan = pd.concat(rounds).groupby(["sharder", "task_id", "rank"])["measured_compute_ms"].mean()
    by_plan = by_plan.groupby(["sharder", "task_id"])
    most, mean = (ranks.groupby("sharder").mean() for ranks in (by_plan.max(), by_plan.mean()))
    print(
        f"\n{len(kept)} tasks, {len(rounds)} campaigns     |      embedding cost ms | against neuroshard |  compute ms"
    )
    print("                           | predicted     measured | mean  95 % interval | busiest     mean")
    for name in ["neuroshard", *names]:
        relative = kept[name].to_numpy() / kept["neuroshard"].to_numpy() - 1
        low, high = interval(relative)
        print(
            f"{name:26s} | {predicted[name].mean():9.4f} {kept[name].mean():12.4f} | {relative.mean():+.2%} "
            f"[{low:+.2%}, {high:+.2%}] | {most[name]:.4f} {mean[name]:.4f}",
            flush=True,
        )


def main() -> None:
    """Compare all variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="data folder of a run")
    parser.add_argument("--campaigns", type=int, default=1, help="number of measurements of every plan")
    parser.add_argument("--tasks", type=int, default=None, help="largest number of tasks")
    arguments = parser.parse_args()
    compare_measured(arguments.data, VARIANTS, arguments.campaigns, arguments.tasks)


if __name__ == "__main__":
    main()
