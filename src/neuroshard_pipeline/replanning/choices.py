"""The choices of a change of plan: keep, move at most some bytes per rank, and free; each with its step and its move.

The search starts from the present plan (`kept`) and makes the changes that gain most per moved byte (`descent`), with
the sharding types of the present plan, with those of a plan from nothing, and with types in between. The free choice is
the cheapest of all that were found and of the plan from nothing. Whatever is found, tables go back to their present
places where that costs nothing (`search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.replanning.moved import Move, move_of, moved_bytes
from neuroshard_pipeline.replanning.present import Judgement, Present, judge, require_some
from neuroshard_pipeline.replanning.search import NearSearch
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
    """One plan that could come after the present one.

    Attributes:
        name: `keep`, `free`, or the limit of the bytes that a rank may move.
        plan: the plan, priced for the task.
        move: what changes from the present plan to this one.
        saved_ms: predicted time by which a step is shorter than with `keep`; 0 if nothing can be kept.
    """

    name: str
    plan: Plan
    move: Move
    saved_ms: float

    @property
    def pays_after(self) -> float | None:
        """Steps after which the saved time has made up for the time of the move; None if no time is saved."""
        return self.move.move_ms / self.saved_ms if self.saved_ms > 0 else None


@dataclass(frozen=True)
class Replan:
    """A frontier of choices.

    Attributes:
        present: the plan that runs.
        judgement: the present plan on the task, as it stands.
        choices: in ascending order of moved bytes and descending order of predicted cost.
    """

    present: Present
    judgement: Judgement
    choices: tuple[Choice, ...]

    def choice(self, name: str) -> Choice:
        """The choice of this name.

        Raises:
            PlanError: there is none; the message names the choices that there are.
        """
        for each in self.choices:
            if each.name == name:
                return each
        raise PlanError(f"there is no choice {name!r}; the choices are {', '.join(c.name for c in self.choices)}")

    def within(self, gib_per_rank: float | None) -> Choice:
        """The cheapest choice in which no rank receives or sends more; the first one if all do."""
        limit = float("inf") if gib_per_rank is None else gib_per_rank * _GIB
        fitting = [each for each in self.choices if each.move.rank_bytes <= limit]
        return fitting[-1] if fitting else self.choices[0]

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
        yield Choice(name, plan, move, saved_ms)
