"""Times steps of TorchRec's embedding module under many plans, with one process per rank.

The clock is that of this machine, or that of virtual ranks (`torchrec_bridge.virtual`).
"""

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.ranks import RankError, free_memory, join_ranks, rank_team
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch, drawn_batches
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams, TurnParams
from neuroshard_pipeline.torchrec_bridge.virtual.log import StepLog
from neuroshard_pipeline.torchrec_bridge.virtual.networks import Network
from neuroshard_pipeline.torchrec_bridge.virtual.replay import Turn, replayed_steps
from neuroshard_pipeline.workers import LocalTeam, TeamFailedError

if TYPE_CHECKING:
    import torch

_LOGGER = logging.getLogger(__name__)

#: Parts of a step in the order in which they run; they add up to `step_ms`. The output dist's is its forward.
STEP_PARTS = ("input_dist_ms", "lookup_forward_ms", "output_dist_ms", "backward_ms")
#: Parts of `backward_ms`; the rest of it is the backward of the output dist, and the reduction of dense gradients.
BACKWARD_PARTS = ("lookup_backward_ms", "dense_optimizer_ms")

#: Parts of `step_ms` on virtual ranks: CPU time, and times in which the rank stands still.
REPLAYED_PARTS = ("computed_ms", "transfer_ms", "waiting_ms")
#: Parts of the input dist on virtual ranks.
INPUT_DIST_PARTS = ("input_dist_computed_ms", "input_dist_waiting_ms")

_COLUMNS = ["task_id", "sharder", "round", "step", "rank", "step_ms", *STEP_PARTS, *BACKWARD_PARTS, "timed", "error"]
_VIRTUAL_COLUMNS = ["network", *REPLAYED_PARTS, *INPUT_DIST_PARTS]

#: A part of a step, and two moments of the rank's clock between which it ran.
Span = tuple[str, float, float]
#: Runs the step of a number, and returns further values of its row and the spans of its parts.
RunStep = Callable[[int], tuple[dict[str, Any], list[Span]]]
#: A row of the result without times; the spans of the parts of the step; and the log of a virtual rank.
Step = tuple[dict[str, Any], list[Span], StepLog | None]


class Group(NamedTuple):
    """Plans of one task that take turns, and whose modules the ranks hold at the same time; global batches of the task.

    Once `least_rounds` are done, another round starts if it is expected to end within `budget_s`; None sets no limit.
    """

    plans: tuple[Plan, ...]
    batches: tuple[Batch, ...]
    budget_s: float | None = None
    least_rounds: int = 1


#: `make(group, params, device, now)` runs on every rank and returns what takes turns: the values that name it in rows,
#: among them `task_id` and `sharder`, and its steps. `now` is None or a virtual rank's clock.
MakeSteps = Callable[[Group, Any, "torch.device", Callable[[], float] | None], list[tuple[dict[str, Any], RunStep]]]


def load_embedding_steps() -> MakeSteps:
    """The steps of the embedding modules alone, for `timed_groups`."""
    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import embedding_steps

    return embedding_steps


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
    networks: Mapping[str, Network] | None = None,
) -> pd.DataFrame:
    """Time steps of TorchRec's embedding module alone under every plan.

    A step distributes the ids of one batch, looks up and pools the rows, distributes the pooled rows, and runs the
    backward pass with gradients of ones, and the optimizer. The ranks wait for each other before every step.
    The plans of a group take turns. If a rank fails, the plans of its group are tried again one by one.

    Args:
        plans: plans of any tasks; the pairs of task and sharder are unique.
        batches_by_task: the global batches of every task, by `task_id`, such as `task_batches` returns them.
        params: how the steps are timed.
        progress: wraps the iteration over groups of plans.
        networks: networks by name make the ranks virtual (`torchrec_bridge.virtual`); every timed step has rows for
            each. Equal steps of a plan in even, or in odd, rounds have one time (`replay.replayed_steps`).

    Returns:
        One row per step and rank: `task_id, sharder, round, step, rank`; `step_ms`, the time of the whole step; its
        parts `STEP_PARTS` and `BACKWARD_PARTS`, which include waiting for other ranks; `timed`, False for warm-up
        steps; `network`, `REPLAYED_PARTS` and `INPUT_DIST_PARTS` with networks. A plan under which a rank failed has
        one row, without times, whose `error` says why.

    Raises:
        RankError: a plan cannot be measured, the machine has too few GPUs, or every plan failed.
    """
    if not plans:
        raise RankError("no plan was given")
    groups = progress(list(step_groups(plans, batches_by_task, params)))
    frame = pd.concat([steps for _, steps in timed_groups(groups, params, networks)], ignore_index=True)
    if frame["error"].notna().all():
        raise RankError(f"no plan could be measured; {frame['error'].iloc[0]}")
    return frame


def timed_groups(
    groups: Iterable[Group],
    params: TurnParams,
    networks: Mapping[str, Network] | None = None,
    load: Callable[[], MakeSteps] = load_embedding_steps,
) -> Iterator[tuple[Group, pd.DataFrame]]:
    """Time steps of every group, and yield rows like those of `measure_steps`.

    `load()` imports and returns what makes the steps. Consecutive groups with equal layouts share their processes.

    Raises:
        RankError: the machine has too few GPUs.
    """
    layout = attrgetter("task.world_size", "task.local_world_size")
    for (world_size, per_host), own in groupby(groups, key=lambda group: layout(group.plans[0])):
        arguments = (world_size, per_host, params, networks is not None, load)
        with rank_team(world_size, set_up_rank, arguments, params, None if networks is None else 1) as team:
            for group in own:
                frames = _frames(group, team, params, networks)
                yield group, pd.concat(frames, ignore_index=True)


def _frames(
    group: Group, team: LocalTeam, params: TurnParams, networks: Mapping[str, Network] | None
) -> list[pd.DataFrame]:
    """The rows of the plans of a group."""
    try:
        answers = team.ask(group, params.timeout_s)
    except TeamFailedError as problem:
        if len(group.plans) > 1:
            alone = [group._replace(plans=(plan,)) for plan in group.plans]
            return [frame for each in alone for frame in _frames(each, team, params, networks)]
        (plan,) = group.plans
        error = (
            f"{plan.task.task_id}: the measurement under the plan of {plan.sharder} stopped: {problem}; the worker's "
            "number is its rank"
        )
        known = {"task_id": plan.task.task_id, "sharder": plan.sharder, "timed": True, "error": error}
        return [pd.DataFrame([dict.fromkeys(_COLUMNS + _VIRTUAL_COLUMNS * (networks is not None), np.nan) | known])]
    return [pd.DataFrame(rows).assign(error=np.nan) for rows in _rows(answers, networks)]


def _rows(answers: Sequence[Sequence[Step]], networks: Mapping[str, Network] | None) -> Iterator[list[dict[str, Any]]]:
    """The rows of a group's steps, from the steps of every rank; with networks, by network."""
    if networks is None:
        yield [{**row, "rank": rank, **durations(spans)} for rank, own in enumerate(answers) for row, spans, _ in own]
    timed = [step for step in zip(*answers, strict=True) if step[0][0]["timed"]]
    logs = [[log for *_, log in step if log is not None] for step in timed]
    turns = [Turn(step[0][0]["round"], step[0][0]["turn"]) for step in timed]
    for name, network in (networks or {}).items():
        rows = []
        for number, times in replayed_steps(logs, turns, network):
            for rank, ((row, spans, _), own) in enumerate(zip(timed[number], times, strict=True)):
                parts = {part: getattr(own, part) for part in REPLAYED_PARTS}
                marks = zip(INPUT_DIST_PARTS, (own.computed_marks_ms, own.waiting_marks_ms), strict=True)
                parts |= {part: durations(spans, ms).get("input_dist_ms", np.nan) for part, ms in marks}
                rows.append({**row, "rank": rank, "network": name, **durations(spans, own.marks_ms), **parts})
        yield rows


def durations(spans: Iterable[Span], marks_ms: Sequence[float] | None = None) -> dict[str, float]:
    """Milliseconds of every part of a step, from the spans of times in ms or, with `marks_ms`, of numbers of marks."""
    found = dict.fromkeys(BACKWARD_PARTS, 0.0)
    for part, start, end in spans:
        ms = end - start if marks_ms is None else marks_ms[int(end)] - marks_ms[int(start)]
        found[part] = found.get(part, 0.0) + ms
    return found


def step_groups(
    plans: Sequence[Plan], batches_by_task: Mapping[str, Sequence[Batch]], params: TurnParams, modules: int = 1
) -> Iterator[Group]:
    """The plans of every task in groups of `TurnParams.plans_held`, by number of ranks; a plan has so many `modules`.

    Raises:
        RankError: a plan cannot be measured.
    """
    _check(plans, batches_by_task)
    by_task: dict[str, list[Plan]] = {}
    # The largest task comes first. The others then take its memory: new pages take as long as several steps.
    by_size = sorted(plans, key=lambda plan: -sum(table.weight_bytes for table in plan.task.tables))
    for plan in sorted(by_size, key=lambda plan: (plan.task.world_size, plan.task.ranks_per_host)):
        by_task.setdefault(plan.task.task_id, []).append(plan)
    for task_id, own in by_task.items():
        held = params.plans_held(own, modules)
        if held < len(own):
            message = "%s: memory and most_plans_held (%d) have room for %d of %d plans at once; groups take turns"
            _LOGGER.info(message, task_id, params.most_plans_held, held, len(own))
        for start in range(0, len(own), held):
            yield Group(tuple(own[start : start + held]), tuple(batches_by_task[task_id]))


def _check(plans: Sequence[Plan], batches_by_task: Mapping[str, Sequence[Batch]]) -> None:
    for (task_id, sharder), count in Counter((plan.task.task_id, plan.sharder) for plan in plans).items():
        if count > 1:
            raise RankError(f"{task_id}: two plans have the sharder name {sharder!r}; give them different names")
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


def set_up_rank(
    rank: int,
    world_size: int,
    local_world_size: int | None,
    params: TurnParams,
    is_virtual: bool,
    load: Callable[[], MakeSteps],
    store_file: str,
) -> Callable[[Group], list[Step]]:
    """Join the process group; the returned function measures one group of plans."""
    import torch  # imported late, because a run that measures no steps needs none of these modules
    import torch.distributed as dist

    from neuroshard_pipeline.torchrec_bridge.virtual.group import join_virtual_ranks

    given = rank, world_size, params, store_file, local_world_size
    log = join_virtual_ranks(*given) if is_virtual else None
    shared = torch.device("cuda:0" if params.compute_device == "cuda" else "cpu")
    device = shared if is_virtual else join_ranks(*given)
    make = load()
    gc.freeze()  # objects of imported modules stay, so a garbage collection need not visit them

    def measure(group: Group) -> list[Step]:
        start_s = time.monotonic()
        free_memory(1 < len(group.plans) == params.plans_held(group.plans, 1))  # of the last group, if there is room
        torch.cuda.empty_cache()  # for ranks that share the GPU
        made = make(group, params, device, log and log.now)

        def has_time(rounds: int) -> bool:
            if group.budget_s is None or rounds < group.least_rounds:
                return True
            spent_s = torch.tensor([time.monotonic() - start_s], device=device)
            dist.broadcast(spent_s, 0)  # all ranks stop after the same round
            return float(spent_s) * (rounds + 1) / rounds < group.budget_s

        def run(at: int, row: dict[str, Any]) -> Step:
            values, spans = made[at][1](row["step"])
            return row | values, spans, log and log.finish()

        return [run(at, row) for at, row in _turns([names for names, _ in made], params, has_time)]

    return measure


def _turns(
    names: Sequence[Mapping[str, Any]], params: TurnParams, has_time: Callable[[int], bool]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The steps of the rounds of one group: the number of what takes the turn, and what a row says of the step.

    The order of turns is the same on all ranks. `has_time(n)` tells whether another round may follow n finished ones.
    """
    rng = np.random.default_rng(params.seed)
    steps = params.warmup_steps + params.steps_per_round
    for number in range(params.rounds):
        if number and not has_time(number):
            return
        for at in rng.permutation(len(names)).tolist():
            for step in range(steps):
                place = {"turn": at, "round": number, "step": number * steps + step}
                yield at, {**names[at], **place, "timed": step >= params.warmup_steps}
