r"""Measured moves and steps beside predicted ones, on two gloo ranks of this machine.

    python benchmarks/replan/moves_on_gloo.py added        # one of the stories of docs/replan.md, 2 minutes
    python benchmarks/replan/moves_on_gloo.py random       # moves between random plans

`--models` is a folder of cost models of this machine (data/06_models after `make run`). For a story, the choices of
`replan` are measured: the time of the move from the present plan, and steps under all choices, as a judge of sharders
measures them. New processes build the models of all choices, and that of the first one a second time, in random order,
and the choices take turns. This is done several times, because the step of one plan differs from build to build. A step
is the mean over the builds of the lower quartile; intervals are those of the ratio to the first choice, paired by
builds. The model that is built twice shows the noise. A measured move is the lower quartile of nine. Both parts print
the median of the relative errors of predicted moves.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from bench_replan import changed, drawn_table
from move_jobs import PARAMS, Job, set_up

import neuroshard_pipeline as ns
from neuroshard_pipeline.evaluation.comparison import Bootstrap, Comparison
from neuroshard_pipeline.evaluation.steps import AGAIN, noise_of, resolution, step_costs
from neuroshard_pipeline.replanning.moved import move_of, moved_bytes
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.report.formats import MISSING
from neuroshard_pipeline.report.replan_tables import VerdictParams, verdict
from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.torchrec_bridge.ranks import rank_team
from neuroshard_pipeline.torchrec_bridge.truth.steps import measure_steps, task_batches

WORLD, BATCH, QUANTILE, BUILDS = 2, 1024, 0.25, 6
COMPARISON = Comparison(Bootstrap(0.95, 2000, 0), least_tasks=5, basis="measured")
VERDICT = VerdictParams(steps=100_000, least_saving=0.02)
HEADER = [
    "choice",
    "predicted step ms",
    "against keep (90 %)",
    "measured step ms",
    "against keep (95 %)",
    "MiB per rank",
]


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


def story(name: str, models: ns.CostModels) -> Story:
    """A story that two ranks can play, by its name on the command line."""
    rng = np.random.default_rng(7)
    task = task_of(16, rng)
    if name == "rival":
        return Story("a plan by TorchRec's planner", ns.shard(task, models, "torchrec"), task)
    plan = ns.shard(task, models)
    if name == "added":
        new = with_profile(ns.Table("new", 300_000, 64, 10.0), BATCH)
        now = replace(task, tables=[*task.tables, new], memory_bytes=task.memory_bytes + new.weight_bytes)
        return Story("one table added", plan, now)
    if name == "ids":
        return Story("other ids", plan, changed(task, "popularity", rng))
    large = max(task.tables, key=lambda table: table.weight_bytes)
    rows = 3 * large.num_embeddings
    grown = with_profile(replace(large, num_embeddings=rows, unique_rows=None, reuse=None), BATCH)
    tables = [grown if table is large else table for table in task.tables]
    memory_bytes = int(0.6 * sum(table.weight_bytes for table in tables))
    return Story("a table grown beyond its rank", plan, replace(task, tables=tables, memory_bytes=memory_bytes))


def measured_move_ms(job: Job) -> float:
    """The lower quartile of the times of a move."""
    with rank_team(WORLD, set_up, (WORLD,), PARAMS) as team:
        return float(np.quantile(team.ask(job, PARAMS.timeout_s)[0], QUANTILE))


def measured_steps(plans: list[ns.Plan]) -> pd.DataFrame:
    """Timed steps of all builds, each of which is a task, of all plans and of the first one again."""
    rng, frames = np.random.default_rng(0), []
    twice = [*plans, replace(plans[0], sharder=plans[0].sharder + AGAIN)]
    batches = task_batches(plans[:1], PARAMS).popitem()[1]
    for number in range(BUILDS):
        name = f"build {number}"
        built = [replace(twice[at], task=replace(twice[at].task, task_id=name)) for at in rng.permutation(len(twice))]
        params = PARAMS.model_copy(update={"most_plans_held": len(built), "seed": number})
        frames.append(measure_steps(built, {name: batches}, params))
    return pd.concat(frames, ignore_index=True)


def share(ratio: float, low: float, high: float) -> str:
    """A ratio of steps and its interval, as changes in percent."""
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*(100 * (each - 1) for each in (ratio, low, high)))


def tell(of: Story, models: ns.CostModels) -> list[float]:
    """Print the choices of a story, predicted and measured; returns relative errors of the moves' times."""
    found = ns.replan(of.present, of.now, models)
    plans, first = [replace(choice.plan, sharder=choice.name) for choice in found.choices], found.choices[0]
    steps = measured_steps(plans)
    costs = step_costs(steps, QUANTILE).reset_index().pivot_table("step_ms", "task_id", "sharder")
    rows, errors = [[*HEADER, "predicted ms to move", "measured"]], []
    for choice, plan in zip(found.choices, plans, strict=True):
        cells, moved = [MISSING] * 2, MISSING
        if choice is not first:
            low, high = choice.gain_over(first)
            ratio = COMPARISON.compare(costs, choice.name, first.name)
            cells = [
                share(*(1 - gain / first.step_ms for gain in (first.step_ms - choice.step_ms, high, low))),
                share(ratio["ratio"], ratio["low"], ratio["high"]),
            ]
        if choice.move.total_bytes:
            measured = measured_move_ms(Job(of.present, plan))
            errors.append(choice.move.move_ms / measured - 1)
            moved = f"{measured:.1f}"
        step = [f"{choice.step_ms:.2f}", cells[0], f"{costs[choice.name].mean():.2f}", cells[1]]
        rows.append([choice.name, *step, f"{choice.move.rank_bytes / 2**20:.1f}", f"{choice.move.move_ms:.1f}", moved])
    print(f"{of.name}\n{aligned_table(rows)}")
    noise = noise_of(steps, QUANTILE)
    print(
        f"two builds of {first.name!r} differ by {noise['per_task']:.1%} (root mean square of {noise['tasks']} pairs): "
        f"{BUILDS} pairs tell steps apart that differ by {resolution(noise, BUILDS):.1%}\n{verdict(found, VERDICT)}"
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
    """Measure a story or random moves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("added", "grown", "ids", "rival", "random"))
    parser.add_argument("--models", default="data/06_models")
    arguments = parser.parse_args()
    models = ns.load_cost_models(arguments.models)
    is_random = arguments.part == "random"
    errors = random_moves(models) if is_random else tell(story(arguments.part, models), models)
    median, mean = np.median(np.abs(errors)), np.mean(errors)
    print(f"median error of {len(errors)} predicted moves: {median:.0%}; {mean:+.0%} on average")


if __name__ == "__main__":
    main()
