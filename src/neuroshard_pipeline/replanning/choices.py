"""The choices of a change of plan: keep, move at most some bytes per rank, and free; each with its step and its move.

The search starts from the present plan (`kept`) and makes the changes that gain most per moved byte (`descent`), with
present sharding types, with those of a plan from nothing, and with types in between. The free choice is the cheapest of
all these and of the plan from nothing. Tables go back to their present places where that costs nothing (`search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.replanning.moved import Move, move_of, moved_bytes
from neuroshard_pipeline.replanning.present import Judgement, Present, judge, require_some
from neuroshard_pipeline.replanning.search import NearSearch
from neuroshard_pipeline.search.gains import SlowestParts, gain_half_ms, slowest_parts
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import on_hosts_of
from neuroshard_pipeline.tables.task import ShardingTask

KEEP, FREE = "keep", "free"
#: A choice that is not cheaper by this share than one that moves less is left out.
LEAST_GAIN = 1e-4
#: Without limits from the caller, the choices between keep and free move these shares of the bytes of the free choice.
_SHARES_OF_FREE = (0.25, 0.5)
_GIB = 2**30


@dataclass(frozen=True, eq=False)
class Choice:
    """A priced plan that could come after the present one: `keep`, `free`, or with a limit of moved bytes as its name.

    A step is predicted to be `saved_ms` shorter than with `keep`; 0 if nothing can be kept. `parts_ms` are the parts of
    a step on the slowest rank.
    """

    name: str
    plan: Plan
    move: Move
    saved_ms: float
    parts_ms: SlowestParts

    @property
    def step_ms(self) -> float:
        """The predicted cost of the plan."""
        assert self.plan.predicted_cost_ms is not None, "choices are priced"
        return self.plan.predicted_cost_ms

    @property
    def pays_after(self) -> float | None:
        """Steps after which the saved time has made up for the time of the move; None if no time is saved."""
        return self.move.move_ms / self.saved_ms if self.saved_ms > 0 else None

    def gain_over(self, other: Choice) -> tuple[float, float]:
        """The 90 % interval of the ms by which a step is shorter than with another choice (`search.gains`)."""
        half_ms = gain_half_ms(other.parts_ms, self.parts_ms)
        return other.step_ms - self.step_ms - half_ms, other.step_ms - self.step_ms + half_ms


@dataclass(frozen=True)
class Replan:
    """The plan that runs, its judgement, and choices in ascending order of moved bytes and descending order of cost."""

    present: Present
    judgement: Judgement
    choices: tuple[Choice, ...]

    def best(self, steps: float = np.inf, least_saving: float = 0.0, gib_per_rank: float | None = None) -> Choice:
        """The choice to take: the first one, or one that moves more and surely shortens a step (`gain_over`).

        Args:
            steps: training steps for which the plan will run; the time of the move and of these steps counts.
            least_saving: share of the first choice's step that a choice must save.
            gib_per_rank: most GiB that a rank may receive or send; None for no limit. The first choice may exceed it.
        """
        limit = np.inf if gib_per_rank is None else gib_per_rank * _GIB
        best = first = self.choices[0]
        for each in (each for each in self.choices[1:] if each.move.rank_bytes <= limit):
            saves = first.step_ms - each.step_ms >= least_saving * first.step_ms
            pays = each.step_ms + each.move.move_ms / steps < best.step_ms + best.move.move_ms / steps
            if saves and pays and (each.gain_over(best)[0] > 0 or each.move.rank_bytes <= best.move.rank_bytes):
                best = each
        return best

    @property
    def free(self) -> Choice:
        """The choice of lowest predicted cost."""
        return self.choices[-1]


def replan(
    present: Present | Plan,
    task: ShardingTask,
    models: Models,
    gib_per_rank: Sequence[float] = (),
    settings: SharderSettings | None = None,
    seed: int = 0,
) -> Replan:
    """Plan a task from the plan that runs.

    The task may have other tables, rows, ids, ranks, hosts and memory than the present plan.

    Args:
        present: the plan that runs (`torchrec_bridge.read_plan` reads it in other forms).
        task: the task as it is now.
        models: cost models.
        gib_per_rank: limits of the GiB that any rank receives or sends, one choice for each; if none are given, a
            quarter and a half of what the free choice moves.
        settings: settings of the searches and of the memory model.
        seed: seed of the searches.

    Raises:
        DoesNotFitError: no plan was found that fits.
        PlanError: the present plan has no table of the task, or a limit is not a number above 0.
    """
    for limit in gib_per_rank:
        if not 0 < limit < float("inf"):
            raise PlanError(f"gib_per_rank {limit!r} must be a number of GiB above 0")
    present = Present.of(present) if isinstance(present, Plan) else present
    require_some(present, task)
    search = NearSearch(present, on_hosts_of(models, task), models, settings or SharderSettings(), seed)
    free = search.free()
    limits = [gib * _GIB for gib in gib_per_rank] or [share * search.port_bytes(free) for share in _SHARES_OF_FREE]
    found = [(f"at most {limit / _GIB:.3g} GiB per rank", search.within(limit)) for limit in sorted(limits)]
    free = search.best([free, *(placement for _, placement in found if placement is not None)])
    named = [(KEEP, search.kept), *((name, placement) for name, placement in found if placement != free), (FREE, free)]
    return Replan(present, judge(present, search.problem), tuple(_choices(search, present, named)))


def _choices(search: NearSearch, present: Present, named: Sequence[tuple[str, Placement | None]]) -> Iterator[Choice]:
    """The choices of these placements, without those that are no cheaper than one before them."""
    keep_ms = None if search.kept is None else search.cost_ms(search.kept)
    before_ms = float("inf")
    for name, placement in named:
        if placement is None or (name != FREE and search.cost_ms(placement) >= (1 - LEAST_GAIN) * before_ms):
            continue
        before_ms = search.cost_ms(placement)
        problem = search.problem.of(placement)
        placed = placement.shards, placement.ranks, problem.task
        move = move_of(moved_bytes(present, *placed, stay=True), problem.task, problem.models)
        plan = price_plan(problem, replace(placement, task=None), "neuroshard_plus")
        saved_ms = 0.0 if keep_ms is None else keep_ms - before_ms
        yield Choice(name, plan, move, saved_ms, slowest_parts(plan, problem.models))
