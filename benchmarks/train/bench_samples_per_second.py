"""How much of a cheaper embedding step arrives in training? Samples per second on 8 virtual ranks, over several tasks.

The plans of all sharders for random tasks of 20 to 60 tables train every model and form of the dense network, in turns.
The tables are drawn from the pool of a data folder; those of a task take at most 150 MB, because a rank holds about 40
models at once. Every network has cost models of its own, with which its plans are made. All plans of a task are
measured together, and every step is replayed with every network. Ratios are means over tasks of the ratio within a
task, with 95 % intervals over resampled tasks. One plan of every task is measured twice, with modules of its own each
time; the differences are the noise.

    kedro run --env virtual --pipeline pretrain
    kedro run --env virtual --pipeline pretrain --params topology.preset=ethernet-5,data_root=data/virtual-5
    python benchmarks/train/bench_samples_per_second.py data/steps ethernet-25=data/virtual ethernet-5=data/virtual-5
    python benchmarks/train/bench_samples_per_second.py data/steps-real real=data     # 2 real ranks, after `make run`

It takes 5 minutes per task on 2 cores, and a minute on real ranks, for which the cores must be quiet. Tasks that
the folder `data/steps` has already are not measured again; without networks, it prints the tables of these tasks.
"""

import argparse
import json
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from tqdm import tqdm

import neuroshard_pipeline as ns
from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.evaluation.steps import AGAIN
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams, TrainTaskParams
from neuroshard_pipeline.torchrec_bridge.train_check.problem import solve_problem, state_problem
from neuroshard_pipeline.torchrec_bridge.train_check.run import train_under_plans
from neuroshard_pipeline.torchrec_bridge.train_check.summary import summarise_training

ROOT = Path(__file__).resolve().parents[2]
HEURISTICS = ("lookup_greedy", "size_lookup_greedy")
SHARDERS = ("torchrec", "torchrec_fitted", *HEURISTICS, "embark", "neuroshard", "neuroshard_plus")
OURS = "neuroshard_plus"
BASELINES = ("torchrec", "heuristic")
TURNS = {"rounds": 2, "steps_per_round": 6, "most_plans_held": 20, "timeout_s": 3000}
FORM, MS = ["network", "model", "dense"], ["step_ms", "embeddings_ms"]
RESAMPLES = 5000
#: Tables of a task, and bytes of their weights.
MOST_TABLES, MOST_BYTES = 60, 150e6


def parameters(task: pd.Series, networks: tuple[str, ...]) -> tuple[TrainTaskParams, TrainingParams]:
    """The parameters of `--env virtual` for a task; those of real ranks without names of networks."""
    given = yaml.safe_load((ROOT / "conf/base/parameters_train_check.yml").read_text())["train_check"]
    own = {name: task[name].item() for name in ("world_size", "batch_size")}
    own |= {"task_id": task["task_id"], "memory_gib": task["memory_bytes"] / 2**30}
    own |= {"local_world_size": 4 if networks else None}
    forms = {"dense": ("ddp", "fsdp2", "hybrid") if networks else ("ddp", "fsdp2"), "networks": networks}
    return TrainTaskParams(**given["task"] | own), TrainingParams(**given["training"] | forms | TURNS)


def measured(tasks: pd.DataFrame, task_id: str, model: str, folders: dict[str, Path]) -> list[dict[str, Any]]:
    """Summaries of a task and model by network."""
    params, training = parameters(tasks[tasks["task_id"] == task_id].iloc[0], tuple(filter(None, folders)))
    training = training.model_copy(update={"models": (model,)})
    task, batches = state_problem(tasks, params, training)
    found = {}
    for network, folder in folders.items():
        models = ns.load_cost_models(folder / "06_models")
        found[network] = solve_problem(task, models, SHARDERS, SharderSettings(), 0, training)
    plans, names = distinct_plans(found)
    steps = train_under_plans(plans, batches, training, lambda groups: tqdm(groups, desc=f"{task_id} {model}"))
    summaries = []
    for network, solutions in found.items():
        alone = training.model_copy(update={"networks": (network,) if network else ()})
        summaries.append(summarise_training(steps_of(steps, network, names), solutions, alone))
    return summaries


def distinct_plans(found: dict[str, Solutions]) -> tuple[list[Plan], dict[tuple[str, str], str]]:
    """Different plans with names of their own, and the name of the plan of each network and sharder."""
    plans: dict[Any, Plan] = {}
    names = {}
    for network, solutions in found.items():
        for plan in solutions.plans:
            taken = plan.sharder in {each.sharder for each in plans.values()}
            named = replace(plan, sharder=f"{plan.sharder} for {network}" if taken else plan.sharder)
            key = frozenset(zip(plan.shards, plan.ranks, strict=True))
            names[network, plan.sharder] = plans.setdefault(key, named).sharder
    return list(plans.values()), names


def steps_of(steps: pd.DataFrame, network: str, names: dict[tuple[str, str], str]) -> pd.DataFrame:
    """The steps on a network under the plans that the sharders made for it."""
    own = steps[steps["network"] == network]
    ours = {sharder: name for (of, sharder), name in names.items() if of == network}
    if ours[OURS] == OURS:  # the plan that was measured twice
        ours[OURS + AGAIN] = OURS + AGAIN
    copies = [own[own["sharder"] == name].assign(sharder=sharder) for sharder, name in ours.items()]
    return pd.concat([*copies, own[own["sharder"] == ""]], ignore_index=True)


def rows_of(folder: Path) -> pd.DataFrame:
    """A row per task, network, model, form and sharder, with the times of the baselines beside its own."""
    summaries = [each for path in sorted(folder.glob("*.json")) for each in json.loads(path.read_text())]
    rows = pd.DataFrame([{"task": each["task_id"], **row} for each in summaries for row in each["speeds"]])
    heuristics = rows[rows["sharder"].isin(HEURISTICS)].sort_values("embeddings_ms")
    best = heuristics.groupby(["task", *FORM]).head(1).assign(sharder="heuristic", predicted_ms=np.nan)
    rows = pd.concat([rows, best], ignore_index=True)
    for baseline in (*BASELINES, OURS + AGAIN):
        theirs = rows[rows["sharder"] == baseline].set_index(["task", *FORM])[MS]
        rows = rows.join(theirs.add_suffix(f"_{baseline}"), on=["task", *FORM])
    return rows


def interval(ratios: pd.Series) -> str:
    """Mean over tasks and its interval."""
    draws = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(ratios.to_numpy()[draws].mean(axis=1), [0.025, 0.975])
    return f"{ratios.mean():.3f} ({low:.3f}-{high:.3f})"


def print_speeds(rows: pd.DataFrame) -> None:
    """Speeds relative to the baselines."""
    for baseline in BASELINES:
        print(f"\nspeed relative to {baseline}: training, embeddings alone; median of samples/s")
        for form, own in rows.groupby(FORM, sort=False):
            for sharder, of in own.groupby("sharder", sort=False):
                whole, alone = (interval(of[f"{ms}_{baseline}"] / of[ms]) for ms in MS)
                speed = of["samples_per_s"].median()
                print(f"{' '.join(form):24} {sharder:24} {whole:22} {alone:22} {speed:9,.0f}")


def print_noise(rows: pd.DataFrame) -> None:
    """Differences of two measurements of a plan, and errors of predicted steps."""
    twice = rows[rows["sharder"] == OURS].dropna(subset=f"step_ms_{OURS + AGAIN}")
    for ms in MS:
        difference = np.log(twice[ms] / twice[f"{ms}_{OURS + AGAIN}"]).abs()
        print(
            f"\n{ms} of two measurements of a plan: differ by {difference.median():.1%}, at most {difference.max():.1%}"
        )
    errors = (rows["predicted_ms"] / rows["step_ms"] - 1).dropna()
    print("\nerror of the predicted step: median; of absolute values, median and 90 % quantile")
    for form, of in errors.groupby([rows[each] for each in FORM], sort=False):
        print(f"{' '.join(form):24} {of.median():+6.1%} {of.abs().median():6.1%} {of.abs().quantile(0.9):6.1%}")
    print(f"all {errors.abs().median():.1%}")


def print_forms(rows: pd.DataFrame) -> None:
    """Speeds of forms of the dense network relative to others, means over sharders and tasks; the network alone."""
    kept = rows[rows["sharder"].isin(SHARDERS)]
    steps = kept.pivot_table(index=["task", "network", "model", "sharder"], columns="dense", values="step_ms")
    print("\nspeed of one form relative to another")
    for (network, model), own in steps.groupby(["network", "model"]):
        for theirs, ours in combinations(own.dropna(axis="columns"), 2):
            ratios = (own[theirs] / own[ours]).groupby("task").mean()
            print(f"{network} {model} {ours} / {theirs} {interval(ratios)}")
    print(f"\nms of a step of the dense network alone\n{kept.groupby(FORM)['dense_ms'].median().round(2).to_string()}")


def tasks_of(folder: Path, world_size: int, count: int) -> pd.DataFrame:
    """Sharding tasks with tables of the pool of the newest run in a data folder."""
    given = yaml.safe_load((ROOT / "conf/base/parameters_augment.yml").read_text())["augment"]["sharding_tasks"]
    least, most = MOST_TABLES // 3 * 4 // world_size, MOST_TABLES * 4 // world_size
    own = {
        "world_sizes": (world_size,),
        "tasks_per_world_size": (count,),
        "min_tables_per_4_ranks": least,
        "max_tables_per_4_ranks": most,
        "memory_fill": MOST_BYTES / given["memory_bytes"] / world_size,
        "tight_share": 0.0,
        "local_world_size": None,
    }
    pool = pd.read_parquet(max((folder / "02_intermediate" / "table_pool.parquet").glob("*/*.parquet")))
    return sharding_tasks(pool, ShardingTaskParams(**given | own))


def measure(target: Path, folders: dict[str, Path], count: int, most: int) -> None:
    """Measure tasks with 8 virtual ranks, or with 2 real ones, that the target folder does not have."""
    tasks = tasks_of(next(iter(folders.values())), 8 if any(folders) else 2, count)
    target.mkdir(parents=True, exist_ok=True)
    paths = {pair: target / "{}-{}.json".format(*pair) for pair in product(tasks["task_id"].unique(), ("dlrm", "dhen"))}
    for pair in [pair for pair, path in paths.items() if not path.exists()][:most]:
        paths[pair].write_text(json.dumps(measured(tasks, *pair, folders), indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("models", nargs="*", help="a network and its data folder, such as ethernet-25=data/virtual")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--most", type=int, default=99, help="most tasks times models that this call measures")
    given = parser.parse_args()
    if given.models:
        pairs = (each.split("=", 1) for each in given.models)
        measure(
            given.target, {name.replace("real", ""): Path(folder) for name, folder in pairs}, given.tasks, given.most
        )
    found = rows_of(given.target)
    print(f"{found['task'].nunique()} tasks: {', '.join(found['task'].unique())}")
    for show in (print_speeds, print_noise, print_forms):
        show(found)
