"""Datasets of a small synthetic run: six sharders on five tasks, with a known measurement error."""

import copy
import dataclasses
import functools

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.plan_intervals import BOUND_COLUMNS
from neuroshard_pipeline.evaluation.steps import noise_of
from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.report import ReportInputs, draw_figures
from neuroshard_pipeline.search.plan_data import FRAME_COLUMNS
from neuroshard_pipeline.tables.row_blocks import row_blocks
from neuroshard_pipeline.tables.table import REUSE_COLUMNS

SHARDERS = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy", "neuroshard")
#: Imbalance of each sharder's ranks, which determines the order of the sharders by cost.
_IMBALANCE = dict(zip(SHARDERS, (0.9, 0.6, 0.45, 0.4, 0.3, 0.05), strict=True))
_TASKS = {
    "task-4x-000": (4, 12),
    "task-4x-001": (4, 40),
    "task-4x-002": (4, 57),
    "task-8x-000": (8, 31),
    "task-8x-001": (8, 90),
}
_PARTS = ("compute", "forward_comm", "backward_comm", "input_dist", "module")
_MS = (0.06, 0.012, 0.02, 0.01, 0.004)
NOISE = {"tasks": 5, "difference": 0.02, "per_task": 0.025, "other_programs": 0.01}
JUDGE = "Measured steps are those of TorchRec's own module, timed on 4 and 8 ranks of this machine."


def build_pool(rng, count=120):
    rows = np.round(rng.lognormal(9, 2.2, count)).astype(int) + 4
    reuse = rng.dirichlet(np.geomspace(8, 0.02, 17), count)
    pool = pd.DataFrame({"table": [f"t_{i:03d}" for i in range(count)], "num_embeddings": rows})
    pool["pooling_factor"] = np.round(rng.lognormal(1.2, 1.3, count), 3) + 0.01
    pool["unique_rows"] = np.minimum(rows, 300.0)
    return pool.join(pd.DataFrame(reuse, columns=list(REUSE_COLUMNS)))


def build_tasks(rng, pool):
    frames = []
    for task_id, (world_size, count) in _TASKS.items():
        tables = pool.sample(count, random_state=np.random.RandomState(len(task_id) + count)).copy()
        tables["embedding_dim"] = rng.choice([4, 8, 16, 32, 64, 128], count)
        tables.insert(0, "task_id", task_id)
        frames.append(tables.assign(world_size=world_size, batch_size=512, memory_bytes=64 * 2**20))
    return pd.concat(frames, ignore_index=True)


def build_plans(rng, tasks):
    """Every sharder's plan of every task: round robin by width, or random; neuroshard first halves the widest table."""
    rows = []
    for task_id, tables in tasks.groupby("task_id", sort=False):
        world_size = int(tables["world_size"].iloc[0])
        for sharder in SHARDERS:
            shards = [(name, 0, int(dim)) for name, dim in zip(tables["table"], tables["embedding_dim"], strict=True)]
            shards.sort(key=lambda shard: -shard[2])
            if sharder == "neuroshard":
                name, _, dim = shards.pop(0)
                shards += [(name, 0, dim // 2), (name, dim // 2, dim // 2)]
            is_random = sharder == "random"
            ranks = rng.integers(0, world_size, len(shards)) if is_random else np.arange(len(shards)) % world_size
            rows += [(task_id, sharder, *shard, int(rank)) for shard, rank in zip(shards, ranks, strict=True)]
    plans = pd.DataFrame(rows, columns=["task_id", "sharder", "table", "column_offset", "embedding_dim", "rank"])
    heights = tasks[["task_id", "table", "num_embeddings"]].rename(columns={"num_embeddings": "num_rows"})
    return plans.merge(heights, on=["task_id", "table"], how="left").assign(sharding_type="column_wise", row_offset=0)


def build_plan_costs(rng):
    rows = []
    for task_id, (world_size, count) in _TASKS.items():
        for sharder in SHARDERS:
            for rank in range(world_size):
                skew = 1 + _IMBALANCE[sharder] * rank / (world_size - 1)
                predicted = np.array(_MS) * count / world_size * skew
                measured = predicted * rng.normal(1, 0.01, len(_PARTS))
                memory = int(2**20 * rng.uniform(20, 60))
                rows.append((task_id, sharder, rank, memory, *predicted, *measured))
    costs = [f"{kind}_{part}_ms" for kind in ("predicted", "measured") for part in _PARTS]
    frame = pd.DataFrame(rows, columns=["task_id", "sharder", "rank", "memory_bytes", *costs])
    return with_steps(frame.assign(predicted_reduction_ms=np.nan, measured_reduction_ms=np.nan))


def with_steps(costs):
    for kind in ("predicted", "measured"):
        sums = costs.filter(regex=f"{kind}_(?!step)").sum(axis=1)
        costs = costs.assign(**{f"{kind}_step_ms": sums.groupby([costs["task_id"], costs["sharder"]]).transform("max")})
    return costs


def build_compute_costs(rng, count=400):
    forward = rng.lognormal(-0.5, 0.8, count)
    costs = pd.DataFrame({"sample_id": [f"compute-{i:06d}" for i in range(count)], "forward_ms": forward})
    costs["backward_ms"] = forward * rng.uniform(1.2, 2.0, count)
    costs["spread_ms"] = costs["forward_ms"] * 0.03 * rng.lognormal(0, 0.6, count) + 0.002
    costs.loc[::50, "spread_ms"] = np.nan
    costs["repeats"] = 3
    costs["error"] = None
    costs.loc[7, ["forward_ms", "backward_ms", "spread_ms"]] = np.nan
    costs.loc[7, "error"] = "out of memory: 3.2 GiB asked of an arena of 2 GiB"
    return costs


def build_comm_costs(rng, count=120, world_size=4):
    size = count * world_size
    ids = np.repeat([f"comm-{i:06d}" for i in range(count)], world_size)
    costs = pd.DataFrame({"sample_id": ids, "rank": np.tile(range(world_size), count)})
    costs["forward_ms"] = rng.lognormal(-1, 0.5, size)
    costs["backward_ms"] = rng.lognormal(-1, 0.4, size)
    costs["spread_ms"] = 0.08 * rng.lognormal(-1, 0.6, size)
    costs["error"] = None
    return costs


def build_held_out(rng, compute_costs, comm_costs):
    compute, comm = compute_costs.dropna(subset="forward_ms").iloc[::4], comm_costs.iloc[::4]
    columns = {
        "compute": (compute, compute["forward_ms"] + compute["backward_ms"]),
        "compute_forward": (compute, compute["forward_ms"]),
        "compute_backward": (compute, compute["backward_ms"]),
        "comm_forward": (comm, comm["forward_ms"]),
        "comm_backward": (comm, comm["backward_ms"]),
    }
    frames = []
    for model, (part, measured) in columns.items():
        frame = pd.DataFrame({"model": model, "sample_id": part["sample_id"], "measured_ms": measured})
        frame = frame.assign(predicted_ms=measured * rng.normal(1, 0.06, len(part)))
        sure = np.nan if model.startswith("compute_") else 0.1
        frames.append(
            frame.assign(low_ms=frame["predicted_ms"] * (1 - sure), high_ms=frame["predicted_ms"] * (1 + sure))
        )
    return pd.concat(frames, ignore_index=True)


def build_summary(plan_costs, tasks):
    """The summary of the search stage; a sharder without costs for a task has failed it."""
    solved = set(zip(plan_costs["task_id"], plan_costs["sharder"], strict=True))
    attempts = [
        (task, name, 1.25 if name == "neuroshard" else 0.002, None if (task, name) in solved else "no plan fits")
        for task in dict.fromkeys(tasks["task_id"])
        for name in SHARDERS
    ]
    attempts = pd.DataFrame(attempts, columns=["task_id", "sharder", "seconds", "error"])
    none = pd.DataFrame(columns=["task_id", "sharder", "rank", *BOUND_COLUMNS])
    is_measured = plan_costs["measured_step_ms"].notna().any()
    return summarise(plan_costs, attempts, none, NOISE if is_measured else noise_of(pd.DataFrame(), 0.25), JUDGE)


@pytest.fixture(scope="session")
def built_inputs():
    rng = np.random.default_rng(7)
    pool = build_pool(rng)
    tasks = build_tasks(rng, pool)
    plan_costs = build_plan_costs(rng)
    compute, comm = build_compute_costs(rng), build_comm_costs(rng)
    accuracy = {"mape": 0.061, "median_ape": 0.048, "bias": -0.012, "r2": 0.987, "kendall_tau": 0.941}
    floor = {"samples": 40, "total": {"median": 0.031, "p90": 0.083}}
    models = ("compute", "compute_forward", "compute_backward", "comm_forward", "comm_backward")
    return ReportInputs(
        hardware={
            "device": "cpu",
            "cpu_model": "AMD EPYC",
            "libraries": {"torch": "2.13.0+cpu"},
            "noise_floor": {"compute": floor, "comm": floor},
        },
        metrics={model: {**accuracy, "noise_floor": 0.031, "n_test": 100} for model in models},
        summary=build_summary(plan_costs, tasks),
        lineage={"run_id": "2026-01-01T00.00.00.000Z", "inputs": {"augment.table_pool": "2026-01-01"}, "outputs": {}},
        compute_costs=compute,
        comm_costs=comm,
        held_out=build_held_out(rng, compute, comm),
        plans=build_plans(rng, tasks),
        plan_costs=plan_costs,
        sharding_tasks=tasks,
    )


@pytest.fixture(scope="session")
def drawn(built_inputs):
    return draw_figures(built_inputs)


def without_plans(inputs, failed):
    """The inputs of a run in which `failed`, pairs of task and sharder, found no plan."""
    kept = {}
    for name in ("plans", "plan_costs"):
        frame = getattr(inputs, name)
        pairs = zip(frame["task_id"], frame["sharder"], strict=True)
        kept[name] = frame[[pair not in failed for pair in pairs]].reset_index(drop=True)
    summary = build_summary(kept["plan_costs"], inputs.sharding_tasks)
    return dataclasses.replace(inputs, **kept, summary=summary)


def unmeasured(inputs):
    """The inputs of a run that measured no plan."""
    columns = {name: float("nan") for name in inputs.plan_costs if name.startswith("measured_")}
    plan_costs = inputs.plan_costs.assign(**columns)
    summary = build_summary(plan_costs, inputs.sharding_tasks)
    return dataclasses.replace(inputs, plan_costs=plan_costs, summary=summary)


def only_task(inputs, task_id):
    """The inputs of a run of one task."""
    kept = {}
    for name in ("plans", "plan_costs", "sharding_tasks"):
        frame = getattr(inputs, name)
        kept[name] = frame[frame["task_id"] == task_id].reset_index(drop=True)
    return dataclasses.replace(inputs, **kept, summary=build_summary(kept["plan_costs"], kept["sharding_tasks"]))


def whole_steps(inputs):
    """The inputs of a run with reductions.

    In neuroshard's plans, the table with the fewest rows has replicas, and the one with the most is row-wise.
    """
    costs, is_ours = inputs.plan_costs.copy(), inputs.plan_costs["sharder"] == "neuroshard"
    for kind in ("predicted", "measured"):
        costs[f"{kind}_reduction_ms"] = (0.1 if kind == "predicted" else 0.11) * is_ours.where(is_ours)
    costs = with_steps(costs)
    rows = inputs.sharding_tasks[["task_id", "table", "num_embeddings", "world_size"]]
    plans = inputs.plans.merge(rows, on=["task_id", "table"])
    frames = [plans[plans["sharder"] != "neuroshard"]]
    for _, own in plans[plans["sharder"] == "neuroshard"].groupby("task_id", sort=False):
        fewest, most = (own["table"].loc[pick(own["num_embeddings"])] for pick in (pd.Series.idxmin, pd.Series.idxmax))
        world = int(own["world_size"].iloc[0])
        frames.append(own[~own["table"].isin([fewest, most])])
        for name, kind in ((fewest, "data_parallel"), (most, "row_wise")):
            table = own[own["table"] == name].iloc[0]
            blocks = row_blocks(int(table["num_embeddings"]), world)
            parts = blocks if kind == "row_wise" else [(0, table["num_embeddings"])] * world
            for rank, (first, count) in enumerate(parts):
                shard = {"rank": rank, "sharding_type": kind, "row_offset": first, "num_rows": count}
                frames.append(table.to_frame().T.assign(column_offset=0, **shard))
    plans = pd.concat(frames, ignore_index=True).infer_objects()
    summary = build_summary(costs, inputs.sharding_tasks)
    return dataclasses.replace(inputs, plan_costs=costs, plans=plans[list(FRAME_COLUMNS)], summary=summary)


#: Complete runs and runs with missing data.
SCENARIOS = {
    "all measured": lambda inputs: inputs,
    "reductions, nothing measured, and a sharder failed two tasks": lambda inputs: without_plans(
        unmeasured(whole_steps(inputs)), {("task-8x-000", "random"), ("task-8x-001", "random")}
    ),
    "no task solved by all": lambda inputs: without_plans(inputs, {(task, "random") for task in _TASKS}),
    "no plan at all": lambda inputs: without_plans(inputs, {(task, name) for task in _TASKS for name in SHARDERS}),
    "a single task and sharder": lambda inputs: without_plans(
        only_task(inputs, "task-8x-000"), {("task-8x-000", name) for name in SHARDERS if name != "neuroshard"}
    ),
}


@pytest.fixture(scope="session")
def built_scenario(built_inputs):
    """Makes the inputs of a run in `SCENARIOS`, once; a test that changes them copies them before."""
    return functools.cache(lambda name: SCENARIOS[name](copied(built_inputs)))


@pytest.fixture(params=SCENARIOS)
def scenario(request, built_scenario):
    """The inputs of every run in `SCENARIOS`, one after the other."""
    return copied(built_scenario(request.param))


@pytest.fixture
def inputs(built_inputs):
    """A copy of `built_inputs` that a test may change."""
    return copied(built_inputs)


copied = copy.deepcopy


@pytest.fixture(scope="session")
def built_whole(built_inputs):
    """A run with reductions; a test that changes it copies it before."""
    return whole_steps(copied(built_inputs))


@pytest.fixture
def whole(built_whole):
    return copied(built_whole)


def titled_axes(figure, letter):
    """Titles of all x axes or of all y axes of a figure; `letter` is x or y. Axes without a title are left out."""
    axes = figure.select_xaxes() if letter == "x" else figure.select_yaxes()
    return [axis.title.text for axis in axes if axis.title.text]
