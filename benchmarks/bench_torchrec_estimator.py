"""Compares `neuroshard_plus` with TorchRec's planner, whose cost formulas get default, data sheet or fitted numbers.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/bench_torchrec_estimator.py              # about 10 minutes
    .venv/bin/python benchmarks/bench_torchrec_estimator.py --models data/h100/06_models   # models of a run

The GPUs are modelled H100, and the tasks are drawn with the parameters of the environment. A constraint limits all
planners to whole tables and column splits.

| name | TorchRec's planner with |
| --- | --- |
| `torchrec` | its default numbers |
| `torchrec_data_sheet` | the bandwidths of NVIDIA's data sheet and of one 400 Gbit/s card per GPU |
| `torchrec_fitted` | `torchrec_perf_config`, fitted to drawn tables |
| `torchrec_fitted_to_task` | `torchrec_perf_config`, fitted to the tables of each task |
| these, except `torchrec_data_sheet`, with `_by_cost` | the same numbers; it places expensive, not large tables first |

Every plan has two embedding costs: one that the cost models predict, and one by the lab's formulas for modelled GPUs.
Percentages compare a mean cost with that of `torchrec`; the intervals are 95 % paired bootstrap confidence intervals.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from bench_plus_measured import ROOT, embedding_costs
from kedro.config import OmegaConfigLoader
from measure_in_memory import measure_plans
from tqdm import tqdm

from neuroshard_pipeline.augment import PoolParams, ShardingTaskParams, base_pool, sharding_tasks
from neuroshard_pipeline.cost_models.models import CostModels, load_cost_models
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.comparison import Bootstrap
from neuroshard_pipeline.measurement import (
    CommCampaign,
    CommMeasureParams,
    ComputeCampaign,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
)
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.settings import CONFIG_LOADER_ARGS
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import make_sharder
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.perf_config import Topology, torchrec_perf_config
from neuroshard_pipeline.torchrec_plan.stock_planner import EmbeddingPerfEstimator, SortBy
from neuroshard_pipeline.torchrec_plan.stock_planner import topology_of as stock_topology

BOOTSTRAP = Bootstrap(confidence=0.95, resamples=10_000, seed=0)

#: NVIDIA H100 SXM5, per GPU: HBM3, NVLink in one direction, and a card of 400 Gbit/s, in bytes per ms.
DATA_SHEET = {"hbm_mem_bw": 3.35e9, "intra_host_bw": 450e6, "inter_host_bw": 50e6}

Parameters = dict[str, Any]


def parameters_of(environment: str) -> Parameters:
    """The parameters of an environment."""
    loader = OmegaConfigLoader(str(ROOT / "conf"), **CONFIG_LOADER_ARGS | {"default_run_env": environment})
    return loader["parameters"]


def tasks_of(conf: Parameters, tasks_per_world_size: int) -> list[ShardingTask]:
    """Sharding tasks, drawn as in the augment stage, on hosts of 8 GPUs, limited to whole tables and column splits."""
    params = ShardingTaskParams(**conf["augment"]["sharding_tasks"])
    counts = (tasks_per_world_size,) * len(params.world_sizes)
    pool = base_pool(PoolParams(**conf["augment"]["pool"]))
    drawn = tasks_from_frame(sharding_tasks(pool, params.model_copy(update={"tasks_per_world_size": counts})))
    columns = [dataclasses.replace(task, constraints=Constraints(sharding_types=("column_wise",))) for task in drawn]
    return [task if task.world_size % 8 else dataclasses.replace(task, local_world_size=8) for task in columns]


def campaigns_of(conf: Parameters) -> Campaigns:
    """How the measure stage of the environment gets the costs of lookups and collectives."""
    measure = conf["measure"]
    compute, comm = ComputeMeasureParams(**measure["compute"]), CommMeasureParams(**measure["comm"])
    recording, topology = RecordingParams(**conf["recording"]), TopologyParams(**conf["topology"])
    return Campaigns(
        ComputeCampaign(compute, measure["seed"], recording), CommCampaign(comm, measure["seed"], topology)
    )


def topology_of(task: ShardingTask, **bandwidths: float) -> Topology:
    """TorchRec's topology of a task."""
    return stock_topology(task, SharderSettings().memory.limits(task), **bandwidths)


def planners_of(task: ShardingTask, models: CostModels) -> Iterator[TorchRecSharder]:
    """The variants of TorchRec's planner."""
    by_cost = {"sort_by": SortBy.PERF}
    yield TorchRecSharder()
    yield TorchRecSharder("torchrec_by_cost", options=by_cost)
    data_sheet = topology_of(task, **DATA_SHEET)
    estimator = {"make_estimator": lambda _, constraints: EmbeddingPerfEstimator(data_sheet, constraints)}
    yield TorchRecSharder("torchrec_data_sheet", options=estimator)
    for name, tables in (("torchrec_fitted", ()), ("torchrec_fitted_to_task", task.tables)):
        batch_size = task.batch_size // task.world_size
        config = torchrec_perf_config(models, topology_of(task), batch_size, tables, task.optimizer)
        tqdm.write(f"{task.task_id} {name}: {config.errors}, TorchRec's default numbers: {config.default_errors}")
        estimator = {"make_estimator": config.estimator}
        yield TorchRecSharder(name, options=estimator)
        yield TorchRecSharder(f"{name}_by_cost", options=estimator | by_cost)


def plans_of(task: ShardingTask, models: CostModels) -> Iterator[Plan]:
    """The plans of `neuroshard_plus` and of all variants of TorchRec's planner, if they found one."""
    settings = SharderSettings()
    problem = Problem(task, models, settings.memory)
    for sharder in (*planners_of(task, models), make_sharder("neuroshard_plus", settings)):
        try:
            placement = sharder.shard(problem, np.random.default_rng(0))
        except DoesNotFitError as error:
            tqdm.write(str(error))
        else:
            yield price_plan(problem, placement, sharder.name)


def report(costs: pd.DataFrame, title: str, names: list[str]) -> None:
    """Print mean costs over the tasks that all sharders solved, and their differences from that of `torchrec` in %."""
    solved = costs[names].dropna()
    print(f"\n{title} embedding cost, {len(solved)} of {len(costs)} tasks")
    for name in names:
        ratio = BOOTSTRAP.ratio_of_means(solved[name].to_numpy(), solved["torchrec"].to_numpy())
        print(
            f"{name:32s} {solved[name].mean():8.3f} ms  {ratio.value - 1:+7.1%} "
            f"[{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]"
        )


def main() -> None:
    """Plan, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="h100", help="environment of modelled GPUs")
    parser.add_argument("--models", default="h100", help="folder or name of cost models")
    parser.add_argument("--tasks", type=int, default=25, help="number of tasks per world size")
    arguments = parser.parse_args()
    conf, models = parameters_of(arguments.env), load_cost_models(arguments.models)
    tasks = tqdm(tasks_of(conf, arguments.tasks), desc="plan", unit="task", disable=None)
    plans = [plan for task in tasks for plan in plans_of(task, models)]
    costs = measure_plans(plans, campaigns_of(conf))[0]
    names = list(dict.fromkeys(plan.sharder for plan in plans))
    for world_size in sorted({plan.task.world_size for plan in plans}):
        of_size = {plan.task.task_id for plan in plans if plan.task.world_size == world_size}
        chosen = costs[costs["task_id"].isin(of_size)]
        report(embedding_costs(chosen, "predicted"), f"{world_size} ranks: predicted", names)
        report(embedding_costs(chosen, "measured"), f"{world_size} ranks: the lab's", names)


if __name__ == "__main__":
    main()
