"""`advise`: all what-ifs of a task, planned anew, and pairs of the best ones."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.advice.doubts import Doubt, doubts
from neuroshard_pipeline.advice.frontiers import BagLengths, frontiers
from neuroshard_pipeline.advice.what_ifs import WhatIf, what_ifs
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.search.gains import SlowestParts, gain_half_ms, slowest_parts
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import on_hosts_of, solve_all
from neuroshard_pipeline.tables.task import ShardingTask

_LOGGER = logging.getLogger(__name__)
#: Pairs are made of this many what-ifs with the largest gains.
_PAIRED = 4
_MS_PER_HOUR = 3.6e6
_NONE = float("nan")


@dataclass(frozen=True, eq=False)
class Line:
    """One what-if with its plan; numbers are NaN if there is no plan, and gains also if there is none today.

    Attributes:
        what_if: the change; for today, one that changes nothing.
        plan: the plan, or None if there is none.
        problem: why there is no plan; empty if there is one.
        samples: samples of one step over all ranks of all replica groups.
        ranks: ranks of all replica groups.
        step_ms: predicted ms for as many samples as one step of today has.
        gain_ms: ms by which the step is shorter than today's.
        low_gain_ms: lower end of the gain's 90 % interval (`search.gains`).
        high_gain_ms: upper end.
        memory_gib: GiB that embeddings need on the fullest rank.
        rank_hours: rank-hours per million samples, if the embedding modules took all the time.
        parts_ms: the parts of a step on the slowest rank.
    """

    what_if: WhatIf
    plan: Plan | None
    problem: str
    samples: int
    ranks: int
    step_ms: float = _NONE
    gain_ms: float = _NONE
    low_gain_ms: float = _NONE
    high_gain_ms: float = _NONE
    memory_gib: float = _NONE
    rank_hours: float = _NONE
    parts_ms: SlowestParts = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Advice:
    """What would make a step faster: the line of today, and the planned what-ifs, the shortest step first.

    What-ifs without a plan come last; `pending` of them were not planned, because the call was interrupted. The doubts
    are assumptions that decide today's plan.
    """

    task: ShardingTask
    today: Line
    lines: tuple[Line, ...]
    pending: int = 0
    doubts: tuple[Doubt, ...] = ()

    def frontiers(self) -> dict[str, list[Line]]:
        """By topic, the lines that give something up, in ascending order of what they give up."""
        found: dict[str, list[Line]] = {}
        for line in sorted(self.lines, key=lambda line: line.what_if.given_up):
            if line.what_if.given_up and line.plan:
                found.setdefault(line.what_if.topic, []).append(line)
        return found

    def best(self) -> list[Line]:
        """The lines that give nothing up, and of every frontier the knee, farthest above the line between its ends."""
        knees = [of[_knee(of)] for of in self.frontiers().values()]
        return [line for line in self.lines if not line.what_if.given_up or line in knees]

    def to_frame(self) -> pd.DataFrame:
        """One row per line with the numbers of `Line` and the words of `WhatIf`; today comes first."""
        words, numbers = ("name", "topic", "changes_model", "given_up", "costs", "setting"), list(Line.__annotations__)
        lines = (self.today, *self.lines)
        of_words = {name: [getattr(line.what_if, name) for line in lines] for name in words}
        return pd.DataFrame(of_words | {name: [getattr(line, name) for line in lines] for name in numbers[2:-1]})


def advise(
    task: ShardingTask,
    models: CostModels,
    settings: SharderSettings | None = None,
    seed: int = 0,
    pairs: int = 3,
    lengths: BagLengths | None = None,
) -> Advice:
    """Plan every what-if of a task anew with `neuroshard_plus`.

    Ctrl-C ends it early; the advice then has what was planned until then.

    Args:
        task: the task of today.
        models: its cost models, with a step cost model.
        settings: settings of the search.
        seed: seed of the search.
        pairs: number of pairs of the best what-ifs that settings alone turn on, and that give nothing up.
        lengths: numbers of bags by length, `lengths[table][n]` bags of n ids; lengths of other tables are assumed to be
            geometrically distributed.
    """
    from neuroshard_pipeline.search.greedy_runs import compile_ahead  # imported late: importing numba takes 0.3 s

    compile_ahead()  # before the first plan, from whose time that of all plans is estimated
    settings, start = settings or SharderSettings(), time.perf_counter()
    plan = partial(plan_line, task, models, settings, seed)
    today = plan(None, WhatIf("today", ""))
    singles = [*what_ifs(task, models), *frontiers(task, today.plan, models, settings.memory, lengths or {})]
    seconds = (time.perf_counter() - start) * (len(singles) + pairs)
    _LOGGER.info("%d what-ifs and up to %d pairs of them take about %.0f s", len(singles), pairs, seconds)
    lines, pending = _planned(partial(plan, today), singles, pairs)
    if today.plan is None:
        return Advice(task, today, lines, pending)
    known = [other for line in lines if line.plan for other in _repriced(line.plan, today.plan.task, models)]
    return Advice(task, today, lines, pending, tuple(doubts(today.plan, known, models, today.parts_ms)))


def _planned(plan: Callable[[WhatIf], Line], singles: Sequence[WhatIf], pairs: int) -> tuple[tuple[Line, ...], int]:
    """The lines of all what-ifs and of pairs of the best ones, and the number that an interruption left out."""
    found, done, count = list[Line](), 0, len(singles) + pairs
    try:
        for done in tqdm(range(count), desc="advice", leave=False, disable=None):
            what = singles[done] if done < len(singles) else _best_pair(found)
            found += [plan(what)] if what else []
        done = count
    except KeyboardInterrupt:
        _LOGGER.warning("interrupted: %d of %d what-ifs were planned", done, count)
    return tuple(sorted(found, key=lambda line: (line.plan is None, line.step_ms))), count - done


def _best_pair(found: Sequence[Line]) -> WhatIf | None:
    """The pair of what-ifs of different topics with the largest gains that was not planned yet."""
    best: dict[str, WhatIf] = {}
    for line in sorted((line for line in found if line.gain_ms > 0), key=lambda line: -line.gain_ms):
        if line.what_if.setting and not line.what_if.given_up and "+" not in line.what_if.topic:
            best.setdefault(line.what_if.topic, line.what_if)
    pairs = (_both(*two) for two in combinations(list(best.values())[:_PAIRED], 2))
    return next((pair for pair in pairs if pair.topic not in {line.what_if.topic for line in found}), None)


def _both(first: WhatIf, second: WhatIf) -> WhatIf:
    name, topic, costs, setting = (
        f"{getattr(first, word)} + {getattr(second, word)}" for word in ("name", "topic", "costs", "setting")
    )
    changes_model = first.changes_model or second.changes_model
    return WhatIf(name, topic, lambda task: second.change(first.change(task)), costs, setting, changes_model)


def _knee(frontier: Sequence[Line]) -> int:
    x, y = np.array([[line.what_if.given_up, line.gain_ms] for line in frontier]).T
    return int(np.argmax(y / max(y[-1], 1e-9) - x / x[-1]))


def plan_line(
    task: ShardingTask, models: CostModels, settings: SharderSettings, seed: int, today: Line | None, what_if: WhatIf
) -> Line:
    """A what-if, planned anew. If today's shards are a plan of the changed task, too, no line is dearer than they."""
    samples, ranks = task.batch_size * task.num_replica_groups, task.world_size * task.num_replica_groups
    try:
        changed, models = what_if.change(task), what_if.models(models)
        solved = solve_all([changed], ["neuroshard_plus"], models, settings, seed)
    except NeuroShardError as refusal:
        return Line(what_if, None, str(refusal), samples, ranks)
    plans = [*solved.plans, *(_repriced(today.plan, changed, models) if today and today.plan else ())]
    share = samples / (changed.batch_size * changed.num_replica_groups)
    line = Line(what_if, None, "", round(samples / share), changed.world_size * changed.num_replica_groups)
    if not plans:
        return replace(line, problem=str(solved.attempts["error"].iloc[0]))
    plan = min(plans, key=lambda plan: plan.predicted_cost_ms or np.inf)
    step_ms, parts = (plan.predicted_cost_ms or np.inf) * share, slowest_parts(plan, models, share)
    gain_ms = today.step_ms - step_ms if today else _NONE
    half_ms = gain_half_ms(today.parts_ms, parts) if today else _NONE
    hours = line.ranks * step_ms / samples * 1e6 / _MS_PER_HOUR
    gib, interval = max(plan.memory_bytes) / 2**30, (gain_ms - half_ms, gain_ms + half_ms)
    return Line(what_if, plan, "", line.samples, line.ranks, step_ms, gain_ms, *interval, gib, hours, parts)


def _repriced(plan: Plan, task: ShardingTask, models: CostModels) -> list[Plan]:
    """The shards of a plan as a plan of another task with the same tables and ranks; empty if they are none."""
    if (plan.task.tables, plan.task.world_size) != (task.tables, task.world_size):
        return []
    with suppress(NeuroShardError):
        problem = Problem(on_hosts_of(models, task), models, plan.memory)
        return [price_plan(problem, Placement(plan.shards, plan.ranks), plan.sharder)]
    return []
