r"""Measured moves and steps beside predicted ones, on two gloo ranks of this machine.

    python benchmarks/replan/moves_on_gloo.py stories      # the stories of docs/replan.md, about 2 minutes each
    python benchmarks/replan/moves_on_gloo.py random       # moves between random plans

`--models` is a folder of cost models of this machine (data/06_models after `make run`). For the stories, the choices of
`replan` are measured: the time of the move from the present plan, and steps under all choices, which take turns. For
both, it prints the median of the relative errors of predicted moves. A measured move is the lower quartile of
nine, as a measured step is that of many.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from bench_replan import changed, drawn_table
from move_jobs import PARAMS, Job, set_up

import neuroshard_pipeline as ns
from neuroshard_pipeline.replanning.moved import move_of, moved_bytes
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.torchrec_bridge.ranks import rank_team
from neuroshard_pipeline.torchrec_bridge.truth.steps import measure_steps, task_batches

WORLD, BATCH, QUANTILE = 2, 1024, 0.25


class Story(NamedTuple):
    """A plan that runs, and the task of today."""

    name: str
    present: ns.Plan
    now: ns.ShardingTask


def task_of(num_tables: int, rng: np.random.Generator) -> ns.ShardingTask:
    """Tables of 30,000 to a million rows on two ranks, which they fill to five sixths."""
    tables = [drawn_table(number, WORLD, rng, (4.5, 6)) for number in range(num_tables)]
    tables = [with_profile(replace(t, unique_rows=None, reuse=None), BATCH) for t in tables]
    memory_bytes = int(0.6 * sum(table.weight_bytes for table in tables))
    return ns.ShardingTask(tables, WORLD, BATCH, memory_bytes, "rowwise_adagrad")


def stories(models: ns.CostModels) -> Iterator[Story]:
    """The stories that two ranks can play."""
    rng = np.random.default_rng(7)
    task = task_of(16, rng)
    plan = ns.shard(task, models)
    new = with_profile(ns.Table("new", 300_000, 64, 10.0), BATCH)
    more_memory = task.memory_bytes + new.weight_bytes
    yield Story("one table added", plan, replace(task, tables=[*task.tables, new], memory_bytes=more_memory))
    large = max(task.tables, key=lambda table: table.weight_bytes)
    rows = 3 * large.num_embeddings
    grown = with_profile(replace(large, num_embeddings=rows, unique_rows=None, reuse=None), BATCH)
    others = sum(table.weight_bytes for table in task.tables if table is not large)
    tight = replace(
        task,
        tables=[grown if table is large else table for table in task.tables],
        memory_bytes=int(0.6 * (others + grown.weight_bytes)),
    )
    yield Story("a table grown beyond its rank", plan, tight)
    yield Story("other ids", plan, changed(task, "popularity", rng))
    yield Story("a plan by TorchRec's planner", ns.shard(task, models, "torchrec"), task)


def measured_move_ms(job: Job) -> float:
    """The lower quartile of the times of a move."""
    with rank_team(WORLD, set_up, (WORLD,), PARAMS) as team:
        return float(np.quantile(team.ask(job, PARAMS.timeout_s)[0], QUANTILE))


def steps_ms(plans: list[ns.Plan]) -> dict[str, float]:
    """Measured steps of plans of one task, which take turns: the lower quartile of the slowest rank's steps."""
    steps = measure_steps(plans, task_batches(plans, PARAMS), PARAMS)
    slowest = steps[steps["timed"]].groupby(["sharder", "round", "step"])["step_ms"].max()
    return slowest.groupby("sharder").quantile(QUANTILE).to_dict()


def tell(story: Story, models: ns.CostModels) -> list[float]:
    """Print the choices of a story, predicted and measured; returns relative errors of the moves' times."""
    found = ns.replan(story.present, story.now, models)
    plans = [replace(choice.plan, sharder=choice.name) for choice in found.choices]
    steps = steps_ms(plans) if len({plan.task for plan in plans}) == 1 else {}
    print(f"{story.name}\n{'choice':28} step ms: predicted measured  MiB per rank  ms to move: predicted measured")
    errors = []
    for choice, plan in zip(found.choices, plans, strict=True):
        predicted, measured = choice.move.move_ms, 0.0
        if choice.move.total_bytes:
            measured = measured_move_ms(Job(story.present, plan))
            errors.append(predicted / measured - 1)
        print(
            f"{choice.name:28} {plan.predicted_cost_ms:18.2f} {steps.get(choice.name, np.nan):8.2f} "
            f"{choice.move.rank_bytes / 2**20:13.1f} {predicted:22.1f} {measured:8.1f}",
            flush=True,
        )
    return errors


def random_moves(models: ns.CostModels) -> list[float]:
    """Print moves between plans of several sharders; returns relative errors of their times."""
    errors = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        task = task_of(int(rng.integers(8, 40)), rng)
        names = rng.choice(["random", "size_greedy", "lookup_greedy", "torchrec", "neuroshard_plus"], 2, replace=False)
        old, new = (ns.shard(task, models, str(name)) for name in names)
        placed = new.shards, new.ranks, task
        predicted = move_of(moved_bytes(Present.of(old), *placed, stay=True), task, models)
        measured = measured_move_ms(Job(old, new))
        errors.append(predicted.move_ms / measured - 1)
        print(
            f"{seed:2} {len(task.tables):2} tables {names[0]:>15} to {names[1]:15} {predicted.rank_bytes / 2**20:7.1f} "
            f"MiB per rank; predicted {predicted.move_ms:6.1f} ms, measured {measured:6.1f} ms",
            flush=True,
        )
    return errors


def main() -> None:
    """Measure stories or random moves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("stories", "random"))
    parser.add_argument("--models", default="data/06_models")
    arguments = parser.parse_args()
    models = ns.load_cost_models(arguments.models)
    errors = random_moves(models) if arguments.part == "random" else []
    for story in stories(models) if arguments.part == "stories" else ():
        errors += tell(story, models)
    median, mean = np.median(np.abs(errors)), np.mean(errors)
    print(f"median error of {len(errors)} predicted moves: {median:.0%}; {mean:+.0%} on average")


if __name__ == "__main__":
    main()
