"""How much cheaper can plans of a small task be, if a search minimises measured steps instead of predicted ones?

    python benchmarks/virtual/replay_search.py data/virtual --minutes 6

A local search on virtual ranks, from the plan of `neuroshard_plus`. A round measures the present plan, random changes
of it and the cheapest change of the round before, side by side. That change is the next present plan if it is cheaper
again: the minimum of several noisy measurements alone is too low. At the end, the last plans are measured anew, with
those of the sharders. The cost models of the folder make the sharders' plans (`kedro run --env virtual --pipeline
pretrain`); the search does not use them.

The task has 20 tables on 8 ranks, 2 hosts with a card of 25 Gbit/s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import neuroshard_pipeline as ns
from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.lab.network_presets import ethernet
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.row_blocks import ranks_together, shards_together
from neuroshard_pipeline.tables.table import Shard, whole
from neuroshard_pipeline.torchrec_bridge.truth import steps
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network

WORLD_SIZE, RANKS_PER_HOST, LOCAL_BATCH, NUM_TABLES, GBIT_PER_S = 8, 4, 512, 20, 25
RIVALS = ("torchrec", "torchrec_fitted", "embark", "size_lookup_greedy", "neuroshard", "neuroshard_plus")
#: Changes that are measured beside the present plan, and the best plans that are measured anew.
NUM_CHANGES, NUM_FINALISTS = 6, 3
QUANTILE = 0.25


def random_task(rng: np.random.Generator) -> ns.ShardingTask:
    """Tables of uneven sizes, widths and pooling factors."""
    tables = [
        ns.Table(
            f"t{at}",
            int(np.exp(rng.uniform(np.log(500), np.log(100_000)))),
            int(rng.choice([16, 32, 64, 128])),
            float(np.exp(rng.uniform(0, np.log(40)))),
        )
        for at in range(NUM_TABLES)
    ]
    batch_size = LOCAL_BATCH * WORLD_SIZE
    return ns.ShardingTask(tables, WORLD_SIZE, batch_size, 2**30, task_id="small", local_world_size=RANKS_PER_HOST)


def params(rounds: int) -> StepParams:
    """Few rounds of steps for the search, more for the last comparison."""
    return StepParams(
        backend="gloo",
        threads=1,
        timeout_s=300,
        learning_rate=0.01,
        num_batches=4,
        rounds=rounds,
        warmup_steps=2,
        steps_per_round=4,
        most_plans_held=NUM_CHANGES + 2,
        seed=0,
    )


def step_ms(frame: pd.DataFrame) -> dict[str, float]:
    """The lower quartile of the slowest rank's steps by plan."""
    slowest = frame[frame["timed"]].groupby(["sharder", "round", "step"])["step_ms"].max()
    return dict(slowest.groupby("sharder").quantile(QUANTILE))


def changed(plan: Plan, problem: Problem, rng: np.random.Generator, name: str) -> Plan:
    """The plan with another type, other column blocks or other ranks for one table, or with two tables exchanged."""
    while True:
        placed = list(zip(plan.shards, plan.ranks, strict=True))
        table = plan.task.tables[int(rng.integers(len(plan.task.tables)))]
        others = [(shard, rank) for shard, rank in placed if shard.table.name != table.name]
        usable = usable_types(table, problem)
        kind = usable[int(rng.integers(len(usable)))]
        count = int(rng.choice([1, 2, 4])) if kind in ("column_wise", "grid_shard") else 1
        width = table.embedding_dim // count
        own = []
        for at in range(count):
            groups = ranks_together(kind, plan.task)
            ranks = groups[rng.integers(len(groups))]
            block = Shard(table, at * width, width) if kind != "data_parallel" else whole(table)
            own += list(zip(shards_together(block, kind, len(ranks)), ranks, strict=False))
        if kind == "column_wise" and count == 1 and rng.random() < 0.5:  # an exchange
            movable = [i for i, (shard, _) in enumerate(others) if shard.sharding_type == "column_wise"]
            before = [rank for shard, rank in placed if shard.table.name == table.name]
            if movable and before:
                chosen = movable[rng.integers(len(movable))]
                own = [(own[0][0], others[chosen][1])]
                others[chosen] = (others[chosen][0], before[0])
        order = {t.name: number for number, t in enumerate(plan.task.tables)}
        ordered = sorted([*others, *own], key=lambda pair: order[pair[0].table.name])
        found = Placement(tuple(shard for shard, _ in ordered), tuple(rank for _, rank in ordered))
        if problem.allows(found) and (found.shards, found.ranks) != (plan.shards, plan.ranks):
            return price_plan(problem, found, name)


class Search:
    """The groups of plans that are measured, one after another; each depends on the measurement of the last."""

    def __init__(self, problem: Problem, start: Plan, seconds: float, seed: int) -> None:
        self._problem, self._rng = problem, np.random.default_rng(seed)
        self._begin, self._seconds = time.monotonic(), seconds
        self.present, self.best, self.num_rounds = start, [start], 0
        self._tried: dict[str, Plan] = {}
        self._promising: Plan | None = None

    def groups(self, batches: Sequence[steps.Batch]) -> Iterator[steps.Group]:
        """Groups until the time is over."""
        while time.monotonic() - self._begin < self._seconds:
            names = [f"change {number}" for number in range(NUM_CHANGES)]
            self._tried = {name: changed(self.present, self._problem, self._rng, name) for name in names}
            for name, plan in {"present": self.present, "again": self._promising}.items():
                if plan is not None:
                    placement = Placement(plan.shards, plan.ranks)
                    self._tried[name] = price_plan(self._problem, placement, name)
            yield steps.Group(tuple(self._tried.values()), tuple(batches))

    def learn(self, frame: pd.DataFrame) -> None:
        """Choose the next present plan."""
        ms, self.num_rounds = step_ms(frame), self.num_rounds + 1
        present, again = ms.pop("present"), ms.pop("again", np.inf)
        if again < present:
            self.present, self._promising = self._tried["again"], None
            self.best.append(self.present)
            return
        name = min(ms, key=lambda each: ms[each])
        self._promising = self._tried[name] if ms[name] < present else None


def main() -> None:
    """Print the steps of all sharders' plans and of the finalists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="data folder with cost models for virtual ranks")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    task = random_task(np.random.default_rng(arguments.seed))
    models = load_cost_models(str(arguments.folder / "06_models"))
    plans = {plan.sharder: plan for plan in solve_all([task], RIVALS, models, SharderSettings()).plans}
    problem = Problem(task, models, default_memory())
    networks = {"modelled": modelled_network(ethernet(GBIT_PER_S, RANKS_PER_HOST))}
    batches = steps.task_batches(plans.values(), params(2))[task.task_id]
    search = Search(problem, plans["neuroshard_plus"], 60 * arguments.minutes, arguments.seed)
    for _, frame in steps.timed_groups(search.groups(batches), params(2), networks):
        search.learn(frame)
    finalists = search.best[-NUM_FINALISTS:]
    named = [
        price_plan(problem, Placement(plan.shards, plan.ranks), f"search {number}")
        for number, plan in enumerate(finalists)
    ]
    again = price_plan(
        problem, Placement(plans["neuroshard_plus"].shards, plans["neuroshard_plus"].ranks), "plus again"
    )
    compared = [*plans.values(), again, *named]
    last = params(8).model_copy(update={"most_plans_held": len(compared)})
    ms = step_ms(steps.measure_steps(compared, {task.task_id: batches}, last, networks=networks))
    print(f"{search.num_rounds} rounds of {NUM_CHANGES} changes, {len(search.best) - 1} accepted")
    predicted = {plan.sharder: plan.predicted_cost_ms for plan in compared}
    table = pd.DataFrame({"measured ms": ms, "predicted ms": predicted})
    table["against neuroshard_plus"] = table["measured ms"] / ms["neuroshard_plus"] - 1
    print(table.sort_values("measured ms").round(3).to_string())


if __name__ == "__main__":
    main()
