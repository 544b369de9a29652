"""Proof of virtual ranks: their clock, the cores that they share, and how well a replay repeats itself.

Needs the extra `torchrec`. `repeat` takes three minutes on 2 cores:

    python benchmarks/virtual/bench_virtual_ranks.py [clock] [cores] [repeat]

`clock`   2 ranks on 2 cores: the wall clock of steps beside replays of the logs of the same steps with the times that
          gloo took in them, from the start of the last rank to the end of the wait; needs 2 free cores
`cores`   CPU time of the same lookups of 2 ranks alone and among 8 and 16 ranks, with and without turns on the cores
`repeat`  12 plans on 4 and 8 ranks in 32 rounds: how far costs of four rounds differ, with and without an estimate of
          the machine's speed in every turn
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from virtual_rank_jobs import gloo_in_place, set_up_with_wall_clock, set_up_without_turns

import neuroshard_pipeline as ns
from neuroshard_pipeline.lab.network_presets import ethernet
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, whole
from neuroshard_pipeline.torchrec_bridge.ranks import rank_team
from neuroshard_pipeline.torchrec_bridge.truth import steps
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.virtual import log as virtual_log
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network
from neuroshard_pipeline.torchrec_bridge.virtual.replay import RankTimes, Turn, replayed, replayed_steps

PARAMS = StepParams(
    backend="gloo",
    threads=1,
    timeout_s=300,
    learning_rate=0.01,
    num_batches=1,
    rounds=8,
    warmup_steps=2,
    steps_per_round=8,
    most_plans_held=8,
    seed=0,
)
LOCAL_BATCH, QUANTILE = 256, 0.25


def task_of(world_size: int, tables_per_rank: int, batch_size: int) -> ns.ShardingTask:
    """Tables of different sizes, the same number for every rank."""
    tables = [
        ns.Table(f"t{at}", 2000 * (1 + at % 7), 32 + 32 * (at % 3), 3.0 + at % 5)
        for at in range(world_size * tables_per_rank)
    ]
    return ns.ShardingTask(tables, world_size, batch_size, memory_bytes=2**32)


def table_wise(task: ns.ShardingTask, shift: int = 0) -> Plan:
    """Consecutive tables on each rank, from rank `shift` on."""
    per_rank = len(task.tables) // task.world_size
    ranks = tuple((at // per_rank + shift) % task.world_size for at in range(len(task.tables)))
    return Plan(task, tuple(map(whole, task.tables)), ranks, "table-wise", compute_device="cpu")


def plans_of(task: ns.ShardingTask, shift: int = 0) -> list[Plan]:
    """One plan each of whole tables, halves of columns, row shards, and replicas; `shift` moves all but row shards."""
    world = task.world_size
    halves, rows, mixed = [], [], []
    for at, table in enumerate(task.tables):
        half = table.embedding_dim // 2
        halves += [(Shard(table, half * part, half), (at + part + shift) % world) for part in range(2)]
        rows += list(zip(row_shards(table, "row_wise", world), range(world), strict=True))
        is_small = table.num_embeddings < 4000
        copies = [(whole(table, "data_parallel"), rank) for rank in range(world)]
        mixed += copies if is_small else [(whole(table), (at + shift) % world)]
    found = [table_wise(task, shift)]
    for name, placed in (("column halves", halves), ("row-wise", rows), ("replicas", mixed)):
        shards, ranks = zip(*placed, strict=True)
        found.append(Plan(task, shards, ranks, name, compute_device="cpu"))
    return found


def clock() -> None:
    """Wall clock of the steps of 2 ranks beside replays of the same steps with the times that gloo took in them."""
    plans = plans_of(task_of(2, 8, 2 * LOCAL_BATCH))
    batches = steps.task_batches(plans, PARAMS)
    plain = steps.measure_steps(plans, batches, PARAMS)
    arguments = (2, None, PARAMS, True, steps.load_embedding_steps)
    with rank_team(2, set_up_with_wall_clock, arguments, PARAMS) as team:
        answers = team.ask(steps.Group(tuple(plans), batches["task"]), PARAMS.timeout_s)
    rows = []
    for of_ranks in zip(*answers, strict=True):
        row = of_ranks[0][0][0]
        network = gloo_in_place([moments for *_, moments in of_ranks])
        times = replayed([step[2] for step, *_ in of_ranks], network)
        wall_ms, replay_ms = max(ms for _, ms, _ in of_ranks), max(own.marks_ms[-1] for own in times)
        rows.append({**row, "wall": wall_ms, "replay": replay_ms, "gloo": np.mean([own.transfer_ms for own in times])})
    timed = pd.DataFrame(rows).query("timed")
    table = timed.groupby("sharder")[["wall", "replay", "gloo"]].quantile(QUANTILE)
    table["difference"] = table["replay"] / table["wall"] - 1
    off = (timed["replay"] / timed["wall"] - 1).abs().groupby(timed["sharder"])
    table["median of |step|"] = off.median()
    table["wall, no log"] = plan_ms(plain.assign(clock="wall"), "clock")["wall"]
    print(f"2 ranks, ms of a step\n{table.round(3).to_string()}\n")


def plan_ms(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Lower quartiles of the steps of every plan, with a column for every value of `by`."""
    timed = frame[frame["timed"]]
    slowest = timed.groupby(["sharder", by, "round", "step"])["step_ms"].max()
    return slowest.groupby(["sharder", by]).quantile(QUANTILE).unstack()  # noqa: PD010


def cores() -> None:
    """CPU time of the lookups of ranks 0 and 1."""
    batch_size, rows = 16 * 64, []
    for world, takes_turns in ((2, True), (8, True), (8, False), (16, True), (16, False)) * 3:  # in turns
        plan = table_wise(task_of(world, 4, batch_size))
        arguments = (world, None, PARAMS, True, steps.load_embedding_steps)
        set_up = steps.set_up_rank if takes_turns else set_up_without_turns
        with rank_team(world, set_up, arguments, PARAMS) as team:
            group = steps.Group((plan,), steps.task_batches([plan], PARAMS)[plan.task.task_id])
            logs = [[log for row, _, log in own if row["timed"]] for own in team.ask(group, PARAMS.timeout_s)[:2]]
        of_marks = [[_lookup_ms(log) for log in own] for own in logs]
        rows.append((world, takes_turns, *np.quantile(of_marks, QUANTILE, axis=1).tolist()))
    table = pd.DataFrame(rows, columns=["ranks", "turns", "rank 0", "rank 1"]).groupby(["ranks", "turns"]).min()
    table["against 2 ranks"] = (table / table.loc[2, True]).mean(axis=1)
    print(f"CPU ms of the same lookups, forward and backward\n{table.round(3).to_string()}\n")


def _lookup_ms(log: virtual_log.StepLog) -> float:
    """CPU time between marks 1 and 2, the forward lookups, and of the longest span after them, the backward lookups."""
    marks = [1e3 * event.cpu_s for event in log.events if event.kind == "mark"]
    return marks[2] + max(marks[3:])


def repeat() -> None:
    """Costs of the same plans from different sets of four rounds of one measurement.

    Costs are relative to the mean of all plans, which is what a comparison of sharders needs.
    """
    params, sizes = PARAMS.model_copy(update={"rounds": 32, "warmup_steps": 1, "steps_per_round": 2}), (4, 8)
    for world in sizes:
        plans = [
            replace(plan, sharder=f"{plan.sharder} {shift}")
            for shift in range(3)
            for plan in plans_of(task_of(world, 4, LOCAL_BATCH * world), shift)
        ]
        group = steps.Group(tuple(plans), steps.task_batches(plans, params)[plans[0].task.task_id])
        with rank_team(world, steps.set_up_rank, (world, 4, params, True, steps.load_embedding_steps), params) as team:
            answers = team.ask(group, params.timeout_s)
        timed = [of_ranks for of_ranks in zip(*answers, strict=True) if of_ranks[0][0]["timed"]]
        turns = [Turn(of_ranks[0][0]["round"], of_ranks[0][0]["turn"]) for of_ranks in timed]
        network = modelled_network(ethernet(25, 4))
        found: dict[str, list[np.ndarray]] = {"lower quartiles": [], "medians at the usual speed": []}
        for first in range(0, params.rounds, 4):
            chosen = [number for number, turn in enumerate(turns) if first <= turn.round < first + 4]
            logs = [[log for *_, log in timed[number]] for number in chosen]
            takers = [turns[number].taker for number in chosen]
            quartiles = (
                pd.Series([_slowest_ms(replayed(own, network)) for own in logs]).groupby(takers).quantile(QUANTILE)
            )
            found["lower quartiles"].append(np.log(quartiles.to_numpy()))
            steady = dict(replayed_steps(logs, [turns[number] for number in chosen], network))
            medians = pd.Series({at: _slowest_ms(times) for at, times in steady.items()}).sort_index().groupby(takers)
            found["medians at the usual speed"].append(np.log(medians.median().to_numpy()))
        print(f"{world} ranks, {len(plans)} plans: standard deviation of a plan's relative cost from four rounds")
        for name, costs in found.items():
            relative = np.array([own - own.mean() for own in costs])
            print(f"  {name}: {100 * np.sqrt(relative.var(axis=0, ddof=1).mean()):.1f} %")


def _slowest_ms(times: Sequence[RankTimes]) -> float:
    return max(own.marks_ms[-1] for own in times)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("clock", "cores", "repeat"):
        {"clock": clock, "cores": cores, "repeat": repeat}[name]()
