"""Measured, not predicted: plans of `neuroshard` and of `neuroshard_plus` under several settings, side by side.

    OMP_NUM_THREADS=1 python benchmarks/bench_plus_measured.py                 # after `make run`; about 4 minutes
    OMP_NUM_THREADS=1 python benchmarks/bench_plus_measured.py --campaigns 3   # narrower intervals

Plans of the same tasks go through the same campaigns, shuffled together, so that the machine's drift hits all alike;
equal ranks are measured once. Intervals are 95 % bootstrap intervals of the mean over tasks of the paired difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from tqdm import tqdm

from neuroshard_pipeline.cost_models.models import CostModels, load_cost_models
from neuroshard_pipeline.evaluation.measure_plans import measure_plan_costs
from neuroshard_pipeline.measurement import CommMeasureParams, ComputeMeasureParams, measure_comm, measure_compute
from neuroshard_pipeline.search.columns import beam_search
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.refine import refine
from neuroshard_pipeline.search.simulator import with_predicted_cost
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.tables.samples import CommSample

ROOT = Path(__file__).resolve().parent.parent

#: Settings of local search that differ from the configured ones.
VARIANTS: dict[str, dict[str, float]] = {
    "plus": {},
    "plus, predictions trusted": {"caution": 0.0},
    "plus, skew is a wait": {"caution": 1.0},
    "plus, half the interval": {"interval_share": 0.5},
    "plus, error 1 %": {"caution": 1.0, "expected_error": 0.01},
    "plus, error 3 %": {"caution": 1.0, "expected_error": 0.03},
    "plus, error 10 %": {"caution": 1.0, "expected_error": 0.1},
    "plus, error 3 %, interval": {"caution": 1.0, "expected_error": 0.03, "interval_share": 0.5},
}


def newest(folder: Path) -> Path:
    """The file of the newest version of a dataset."""
    return sorted(folder.iterdir())[-1] / folder.name


def plans_of(tasks, models, conf: dict[str, Any], variants: dict[str, dict[str, float]]) -> list[Plan]:
    """The plan of `neuroshard` and of every variant for every task."""
    memory, search = MemoryModel(**conf["memory"]), SearchParams(**conf["neuroshard"])
    plans = []
    for task in tqdm(tasks, desc="search", unit="task", disable=None):
        kinds = ShardKinds(task, models, memory)
        start = beam_search(kinds, search)
        found = {"neuroshard": start}
        for name, changes in variants.items():
            params = PlusParams(**{**conf["neuroshard_plus"], **changes})
            found[name] = refine(start, kinds, params, np.random.default_rng(0))
        plans += [with_predicted_cost(kinds.plan(p.kinds, p.ranks, name), models) for name, p in found.items()]
    return plans


def embedding_costs(plan_costs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Tasks x sharders: the largest sum over ranks of the three parts."""
    parts = [f"{kind}_{part}_ms" for part in ("compute", "forward_comm", "backward_comm")]
    total = plan_costs[parts].sum(axis=1, skipna=False)
    return plan_costs.assign(total=total).pivot_table(
        index="task_id", columns="sharder", values="total", aggfunc="max", dropna=False
    )


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    means = rng.choice(differences, (4000, len(differences))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def compare_measured(
    data: Path,
    variants: dict[str, dict[str, float]],
    *,
    campaigns: int = 1,
    num_tasks: int | None = None,
    model_collectives: bool = False,
) -> None:
    """Search the tasks of a run with its models, measure the plans, print one line per sharder."""
    conf = yaml.safe_load((ROOT / "conf/base/parameters_search.yml").read_text())["search"]
    tasks = tasks_from_frame(pd.read_parquet(newest(data / "03_primary/sharding_tasks.parquet")))
    models = load_cost_models(data / "06_models")
    plans = plans_of(tasks[:num_tasks], models, conf, variants)
    compute = ComputeMeasureParams(**conf["compute"])
    comm = CommMeasureParams(**conf["comm"] | {"local_world_size": None, "torchrun_endpoint": None})
    lookups = partial(measure_compute, params=compute, seed=0)
    collectives = partial(modelled, models=models) if model_collectives else partial(measure_comm, params=comm, seed=0)
    rounds = []
    for _ in range(campaigns):
        rounds.append(measure_plan_costs(plans, lookups, collectives))
        report(rounds, [*variants])


def main() -> None:
    """Compare all variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--campaigns", type=int, default=1, help="measurements of every plan, one after the other")
    parser.add_argument("--tasks", type=int, default=None, help="only the first so many")
    parser.add_argument(
        "--model-collectives", action="store_true", help="measure lookups only: on a busy machine gloo shows the others"
    )
    arguments = parser.parse_args()
    compare_measured(
        arguments.data,
        VARIANTS,
        campaigns=arguments.campaigns,
        num_tasks=arguments.tasks,
        model_collectives=arguments.model_collectives,
    )


def modelled(samples: Sequence[CommSample], models: CostModels) -> pd.DataFrame:
    """What `measure_comm` returns, as predicted; its forward costs follow from the measured start skews."""
    frames = []
    for sample in samples:
        dim_sums, skew_ms = np.array([sample.dim_sums]), np.array([sample.start_skew_ms])
        forward_ms = models.comm.forward_ms(dim_sums, skew_ms, sample.batch_size)[0]
        backward_ms = models.comm.backward_ms(dim_sums, sample.batch_size)[0]
        costs = {"rank": range(sample.world_size), "forward_ms": forward_ms, "backward_ms": backward_ms}
        frames.append(pd.DataFrame(costs).assign(sample_id=sample.sample_id, error=None))
    return pd.concat(frames, ignore_index=True)


def report(rounds: list[pd.DataFrame], names: list[str]) -> None:
    """One line per sharder, means over the campaigns so far."""
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


if __name__ == "__main__":
    main()
