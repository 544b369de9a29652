"""Shows how much cheaper plans could still be in the lab: plans of another search, and a proved lower bound.

    OMP_NUM_THREADS=1 python benchmarks/ceiling/search_ceiling.py --tasks mlperf-16-0 giant-8-0 --seconds 100

`mlperf-16-0` is the first task of the suite `mlperf` on 16 ranks (`whole_cost_tasks`). Plans are judged by the lab's
formulas for modelled GPUs (`lab.step`). The other search, simulated annealing (`plan_annealing`), minimises this cost
itself, whereas `neuroshard_plus` minimises what cost models predict. Annealing starts from the plan of every sharder,
once with a low and once with a high temperature, and, for every set of up to three sharding types, from a random plan
with these types. `lab_bounds` and, on several hosts, `lab_branching` prove that no plan is cheaper than the bound. The
script prints the costs, their ratios, and the parts of a step of every plan, as means over ranks. On several hosts, it
also prints a bound for plans in which every table has the type that it has in the cheapest plan.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "search"))

from bench_whole_cost import DEVICE, NETWORK, OURS, PARTS, SHARDERS
from lab_bounds import LabBound
from lab_branching import Branching
from lab_plans import Machine, evaluate
from lab_reductions import gradient_passes
from lab_terms import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, Terms, terms_of
from plan_annealing import anneal
from whole_cost_tasks import suite_tasks

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.lab.network import BYTES_PER_US, collective_us
from neuroshard_pipeline.lab.step import StepCost, step_cost_ms, step_params
from neuroshard_pipeline.lab.step_groups import ID_BYTES, LENGTH_BYTES, Job
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, whole
from neuroshard_pipeline.tables.task import ShardingTask

FOUND = "annealing"
#: First and last temperature of a search, as shares of the cost.
_COLD, _HOT = (0.002, 0.0001), (0.03, 0.0002)
_MOST_KINDS, _TIMED, _AGREE = 3, 200, 1e-9


@dataclass(frozen=True)
class Start:
    """Where a search starts: a plan as in `lab_plans`, the types that the search may use, and two temperatures."""

    name: str
    kinds: IntArray
    blocks: IntArray
    allowed: Sequence[int]
    temperatures: tuple[float, float]


def machine_of(job: Job) -> Machine:
    """The numbers of a job that `evaluate` needs."""
    host, fabric, kernels = job.network.host, job.network.fabric, job.device.kernels
    return Machine(
        job.world_size,
        job.ranks_per_host,
        float(job.task.batch_size),
        kernels.forward_launch_us,
        kernels.backward_launch_us,
        job.device.device.hbm_gb_per_s * kernels.hbm_efficiency * BYTES_PER_US,
        job.host.host_sync_us,
        job.host.lookup_host_us,
        job.host.pooled_sort_ns / 1e3 / ID_BYTES,
        job.host.permute_segment_ns / 1e3 / LENGTH_BYTES,
        float(gradient_passes(job.task)),
        host.launch_us,
        host.rank_us,
        host.link_gb_per_s * BYTES_PER_US,
        host.switch_reduction,
        host.fill_us,
        host.low_latency_share,
        fabric.hop_us,
        fabric.peer_us,
        fabric.card_gb_per_s * BYTES_PER_US,
        fabric.card_gb_per_s * BYTES_PER_US * fabric.alltoall_share ** np.log2(job.num_hosts),
        fabric.tree_fill_us,
        fabric.ring_fill_us,
        fabric.low_latency_share,
        fabric.trees,
        float(collective_us("alltoall", 24.0 * job.world_size, job.world_size, job.num_hosts, job.network)),
    )


def job_of(task: ShardingTask) -> Job:
    """The task on the modelled cluster."""
    network = NETWORK.model_copy(update={"gpus_per_host": task.ranks_per_host})
    return Job(task, DEVICE, network, step_params())


def encoded(placement: Placement | Plan, task: ShardingTask) -> tuple[IntArray, IntArray]:
    """Types and blocks of a placement."""
    numbers = {table.name: number for number, table in enumerate(task.tables)}
    kinds, blocks = np.zeros(len(numbers), dtype=np.int64), {}
    for part, rank in zip(placement.shards, placement.ranks, strict=True):
        table, kind = numbers[part.table.name], KINDS.index(part.sharding_type)
        kinds[table] = kind
        place = rank if kind == COLUMN_WISE else 0 if kind in (DATA_PARALLEL, ROW_WISE) else rank // task.ranks_per_host
        key = (table, part.column_offset, rank if kind == COLUMN_WISE else -1)
        blocks[key] = (table, part.embedding_dim // COLUMN_GRANULARITY, place)
    return kinds, np.array(list(blocks.values()))


def decoded(kinds: IntArray, blocks: IntArray, task: ShardingTask) -> Placement:
    """The placement of types and blocks; tables in the order of the task."""
    placed: dict[int, list[tuple[Shard, int]]] = defaultdict(list)
    offsets = [0] * len(task.tables)
    for number, width, place in blocks.tolist():
        table, kind, columns = task.tables[number], kinds[number], COLUMN_GRANULARITY * width
        if kind == COLUMN_WISE:
            found = [(Shard(table, offsets[number], columns), place)]
        elif kind == DATA_PARALLEL:
            found = [(whole(table, "data_parallel"), rank) for rank in range(task.world_size)]
        else:
            ranks, first = (task.world_size, 0) if kind == ROW_WISE else (task.ranks_per_host, place)
            rows = row_shards(table, KINDS[kind], ranks, offsets[number], columns)
            found = [(part, first * task.ranks_per_host + rank) for rank, part in enumerate(rows)]
        placed[number] += found
        offsets[number] += columns
    shards, ranks = zip(*(pair for number in range(len(task.tables)) for pair in placed[number]), strict=True)
    return Placement(shards, ranks)


def starts(plans: dict[str, Plan], task: ShardingTask, terms: Terms) -> Iterator[Start]:
    """Starting points of all searches."""
    every = range(len(KINDS))
    for name, plan in plans.items():
        yield Start(f"{name}, cold", *encoded(plan, task), every, _COLD)
        yield Start(f"{name}, hot", *encoded(plan, task), every, _HOT)
    possible = [kind for kind in every if terms.usable[:, kind].any()]
    for count in range(1, min(_MOST_KINDS, len(possible)) + 1):
        for kinds in itertools.combinations(possible, count):
            if terms.usable[:, kinds].any(axis=1).all():
                yield _random_start(kinds, task, terms)


def _random_start(allowed: Sequence[int], task: ShardingTask, terms: Terms) -> Start:
    rng = np.random.default_rng(list(allowed))
    kinds = np.array([rng.choice([kind for kind in allowed if usable[kind]]) for usable in terms.usable])
    ends = np.array([task.world_size, 1, 1, task.num_hosts, task.num_hosts])
    blocks = np.stack([np.arange(len(kinds)), terms.widths, rng.integers(ends[kinds])], axis=1)
    return Start(" + ".join(KINDS[kind] for kind in allowed), kinds, blocks, allowed, _HOT)


def best_placement(found: Sequence[Start], task: ShardingTask, terms: Terms, seconds: float) -> Placement | None:
    """The cheapest plan of all searches, which together take about `seconds`."""
    machine = machine_of(job_of(task))
    best, placement = np.inf, None
    evaluate(found[0].kinds, found[0].blocks, terms, machine)  # compiles it
    began = time.perf_counter()
    for _ in range(_TIMED):
        evaluate(found[0].kinds, found[0].blocks, terms, machine)
    each = (time.perf_counter() - began) / _TIMED
    for number, start in enumerate(found):
        usable = terms.usable & np.isin(np.arange(len(KINDS)), start.allowed)
        room = np.concatenate([start.blocks, np.zeros((4 * (len(start.blocks) + len(start.kinds)), 3), dtype=np.int64)])
        arguments = (*start.temperatures, start.kinds, room, len(start.blocks), usable, terms, machine)
        cost, *plan = anneal(np.random.default_rng(number), int(seconds / len(found) / each), *arguments)
        print(f"  {start.name:50s} {cost:9.3f} ms", flush=True)
        if cost < best:
            best, placement = cost, decoded(*plan, task)
    return placement


def check(task: ShardingTask, placement: Placement | Plan, terms: Terms, cost: StepCost) -> None:
    """Raise `AssertionError` unless the compiled cost is the lab's."""
    compiled = evaluate(*encoded(placement, task), terms, machine_of(job_of(task)))[0]
    assert abs(compiled / cost.step_ms - 1) < _AGREE, f"{task.task_id}: {compiled} ms is not the lab's {cost.step_ms}"


def bound(task: ShardingTask, terms: Terms, cost_ms: float, seconds: float) -> float:
    """A proved lower bound in ms on the cost of every plan, one of which costs `cost_ms`."""
    job = job_of(task)
    bound_ms = LabBound(terms, job).step_ms(cost_ms)
    if job.num_hosts == 1:
        return bound_ms
    branching = Branching(terms, machine_of(job), job.network)
    return max(bound_ms, branching.least(seconds, 1e3 * cost_ms).least_us / 1e3)


def report(task: ShardingTask, models: Models, sharders: Sequence[str], seconds: float, bound_seconds: float) -> None:
    """Print everything about one task."""
    problem = Problem(task, models, default_memory())
    terms, plans = terms_of(problem, DEVICE), {}
    for name in sharders:
        try:
            plans[name] = shard(task, models, name)
        except DoesNotFitError as error:
            print(f"  {name}: {error}")
    print(task.task_id, flush=True)
    best = best_placement(list(starts(plans, task, terms)), task, terms, seconds)
    placements: dict[str, Placement | Plan] = {**plans, **({} if best is None else {FOUND: best})}
    costs = {name: step_cost_ms(task, p.shards, p.ranks, DEVICE, NETWORK) for name, p in placements.items()}
    for name, cost in costs.items():
        check(task, placements[name], terms, cost)
    cheapest = min(costs, key=lambda name: costs[name].step_ms)
    bound_ms = bound(task, terms, costs[cheapest].step_ms, bound_seconds)
    print(f"  bound {bound_ms:.3f} ms")
    if task.num_hosts > 1:
        kinds, _ = encoded(placements[cheapest], task)
        own = terms._replace(usable=terms.usable & (np.arange(len(KINDS)) == kinds[:, None]))
        own_ms = bound(task, own, costs[cheapest].step_ms, bound_seconds)
        print(f"  bound with the types of {cheapest} {own_ms:.3f} ms")
    for name, cost in costs.items():
        parts = "  ".join(f"{part} {getattr(cost, f'{part}_ms').mean():.3f}" for part in PARTS)
        ratios = "  ".join(f"/ {other} {cost.step_ms / of.step_ms:.3f}" for other, of in costs.items() if other != name)
        print(f"  {name:16s} {cost.step_ms:8.3f} ms  / bound {cost.step_ms / bound_ms:.3f}  {ratios} | {parts}")


def main() -> None:
    """Report every task that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["mlperf-16-0"])
    parser.add_argument("--sharders", nargs="+", choices=SHARDERS, default=[OURS, "torchrec"])
    parser.add_argument("--seconds", type=float, default=100.0, help="time of all searches of a task together")
    parser.add_argument("--bound-seconds", type=float, default=200.0, help="time for each bound on several hosts")
    parser.add_argument("--local-batch", type=int, help="samples per rank instead of the task's")
    arguments = parser.parse_args()
    models = load_cost_models("h100")
    for name in arguments.tasks:
        suite, ranks, number = name.split("-")
        task = list(suite_tasks(suite, int(ranks), int(number) + 1))[int(number)]
        if arguments.local_batch is not None:
            task = replace(task, batch_size=arguments.local_batch * task.world_size)
        report(task, models, arguments.sharders, arguments.seconds, arguments.bound_seconds)


if __name__ == "__main__":
    main()
