"""Times steps of TorchRec's embedding module under many plans, with one process per rank."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.ranks import RankError, join_ranks, rank_team
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch, drawn_batches
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.workers import TeamFailedError

#: Parts of a step in the order in which they run; they add up to `step_ms`.
STEP_PARTS = ("input_dist_ms", "lookup_forward_ms", "output_dist_ms", "backward_ms")
#: Parts of `backward_ms`; the rest of it is the backward of the output dist, and the reduction of dense gradients.
BACKWARD_PARTS = ("lookup_backward_ms", "dense_optimizer_ms")

_COLUMNS = ["task_id", "sharder", "round", "step", "rank", "step_ms", *STEP_PARTS, *BACKWARD_PARTS, "timed"]

Row = dict[str, Any]


class Group(NamedTuple):
    """Plans of one task whose modules the ranks hold at the same time, and the global batches of the task."""

    plans: tuple[Plan, ...]
    batches: tuple[Batch, ...]


def task_batches(plans: Iterable[Plan], params: StepParams) -> dict[str, tuple[Batch, ...]]:
    """Global batches of every task of the plans, drawn from the reuse profiles of its tables."""
    tasks = {plan.task.task_id: plan.task for plan in plans}
    return {
        name: drawn_batches(task.tables, task.batch_size, params.num_batches, params.seed)
        for name, task in tasks.items()
    }


def measure_steps(
    plans: Sequence[Plan],
    batches_by_task: Mapping[str, Sequence[Batch]],
    params: StepParams,
    progress: Callable[[Sequence[Group]], Iterable[Group]] = iter,
) -> pd.DataFrame:
    """Time steps of TorchRec's embedding module alone under every plan.

    A step distributes the ids of one batch, looks up and pools the rows, distributes the pooled rows, and runs the
    backward pass with gradients of ones, and the optimizer. The ranks wait for each other before every step.
    Plans of a task take turns; at most `params.most_plans_held` plans are held at the same time.

    Args:
        plans: plans of any tasks with equal numbers of ranks and hosts; the pairs of task and sharder are unique.
        batches_by_task: the global batches of every task, by `task_id`, such as `task_batches` returns them.
        params: how the steps are timed.
        progress: wraps the iteration over groups of plans.

    Returns:
        One row per step and rank: `task_id, sharder, round, step, rank`; `step_ms`, the time of the whole step; its
        parts `STEP_PARTS` and `BACKWARD_PARTS`; `timed`, which is False for warm-up steps. `output_dist_ms` is the
        forward of the output dist. A part includes the time in which its collectives wait for other ranks.

    Raises:
        RankError: a plan cannot be measured, alone or with the others, the machine has too few GPUs, or a rank failed.
    """
    world_size = _check(plans, batches_by_task)
    frames = []
    with rank_team(world_size, set_up_rank, (world_size, plans[0].task.local_world_size, params), params) as team:
        for group in progress(list(_groups(plans, batches_by_task, params.most_plans_held))):
            try:
                answers = team.ask(group, params.timeout_s)
            except TeamFailedError as problem:
                names = ", ".join(plan.sharder for plan in group.plans)
                raise RankError(
                    f"{group.plans[0].task.task_id}: the measurement under the plans of {names} stopped: {problem}; "
                    "the worker's number is its rank"
                ) from problem
            frames += [pd.DataFrame(rows).assign(rank=rank) for rank, rows in enumerate(answers)]
    return pd.concat(frames, ignore_index=True)[_COLUMNS]


def _check(plans: Sequence[Plan], batches_by_task: Mapping[str, Sequence[Batch]]) -> int:
    """The world size of all plans; raises `RankError` if a plan cannot be measured, alone or with the others."""
    if not plans:
        raise RankError("no plan was given")
    layouts = {(plan.task.world_size, plan.task.ranks_per_host) for plan in plans}
    if len(layouts) > 1:
        raise RankError(f"the plans have different numbers of ranks or ranks per host: {sorted(layouts)}")
    names = [(plan.task.task_id, plan.sharder) for plan in plans]
    if len(set(names)) < len(names):
        double = next(name for at, name in enumerate(names) if name in names[:at])
        raise RankError(f"{double[0]}: two plans have the sharder name {double[1]!r}; give them different names")
    for plan in plans:
        task = plan.task
        if task.batch_size % task.world_size:
            raise RankError(
                f"{task.task_id}: batch_size {task.batch_size} must be a multiple of world_size {task.world_size}"
            )
        if task.num_replica_groups > 1:
            raise RankError(
                f"{task.task_id}: steps of one group are measured, without the averaging of {task.num_replica_groups} "
                "replica groups; set num_replica_groups to 1"
            )
        if task.task_id not in batches_by_task:
            raise RankError(f"{task.task_id}: batches_by_task has no batches of this task")
    return plans[0].task.world_size


def _groups(plans: Sequence[Plan], batches_by_task: Mapping[str, Sequence[Batch]], most: int) -> Iterator[Group]:
    """The plans of every task in groups of at most `most`."""
    by_task: dict[str, list[Plan]] = {}
    for plan in plans:
        by_task.setdefault(plan.task.task_id, []).append(plan)
    for task_id, own in by_task.items():
        for start in range(0, len(own), most):
            yield Group(tuple(own[start : start + most]), tuple(batches_by_task[task_id]))


def set_up_rank(
    rank: int, world_size: int, local_world_size: int | None, params: StepParams, store_file: str
) -> Callable[[Group], list[Row]]:
    """Join the process group; the returned function measures one group of plans."""
    device = join_ranks(rank, world_size, params, store_file, local_world_size)
    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import RankIds, ShardedEmbeddings

    gc.freeze()  # objects of imported modules stay, so a garbage collection need not visit them

    def measure(group: Group) -> list[Row]:
        gc.collect()  # the modules of the last group contain reference cycles
        share = group.plans[0].task.batch_size // world_size
        part = slice(rank * share, (rank + 1) * share)
        tables = group.plans[0].task.tables
        batches = [RankIds(tables, batch.ids, part, device) for batch in group.batches]
        modules = [ShardedEmbeddings(plan, params, device) for plan in group.plans]
        return list(_turns(group.plans, modules, batches, params))

    return measure


def _turns(plans: Sequence[Plan], modules: Sequence[Any], batches: Sequence[Any], params: StepParams) -> Iterator[Row]:
    """Run the rounds of one group on this rank; the order of turns is the same on all ranks."""
    rng = np.random.default_rng(params.seed)
    steps = params.warmup_steps + params.steps_per_round
    for number in range(params.rounds):
        for at in rng.permutation(len(plans)).tolist():
            for step in range(steps):
                total = number * steps + step
                times = modules[at].step(batches[total % len(batches)])
                yield {
                    "task_id": plans[at].task.task_id,
                    "sharder": plans[at].sharder,
                    "round": number,
                    "step": total,
                    "timed": step >= params.warmup_steps,
                    **times,
                }
