"""Placements that could come after the present plan: from nothing, from the present plan, and between both.

Shapes: W ranks; the 2 ports of a rank are what it receives and what it sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.replanning.descent import descend, home_of
from neuroshard_pipeline.replanning.kept import completed, kept, kept_spread, placed_spread, staying
from neuroshard_pipeline.replanning.moved import moved_bytes
from neuroshard_pipeline.replanning.nearest import nearest, total_bytes
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.search.models import COST_UNITS_PER_MS, Models
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_part, column_problem, joined, spread_of
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Number of sets of sharding types between the present ones and those from nothing.
_NUM_MIXES = 3
#: Most prices for tables that go back to their present places; most tables on the busiest port that are tried for this.
_MOST_RETURNS, _NUM_RETREATS = 64, 8
#: With more tables, a price takes so long that fewer returns are tried, in proportion, and no retreats.
_MANY_TABLES = 100
#: Number of layouts of a descent, the cheapest ones, that are tried until one moves few enough bytes.
_NUM_ENDS = 8

#: Shards and ranks by table.
_ByTable = dict[str, list[tuple[Shard, int]]]


class NearSearch:
    """Placements that could come after the present plan.

    The problem is that of the task with the tiers and kernels of the present plan. `kept` has the fewest changes, or is
    None if more are needed. `fresh` comes from nothing, renamed so that fewest bytes move; with a task, of a variant.
    """

    def __init__(
        self, present: Present, task: ShardingTask, models: Models, settings: SharderSettings, seed: int
    ) -> None:
        self._present, self._rng = present, np.random.default_rng(seed)
        self.problem = Problem(present.task(task), models, settings.memory)
        solved = solve_all([task], ["neuroshard_plus"], models, settings, seed)
        if not solved.plans:
            raise DoesNotFitError(str(solved.failures["error"].iloc[0]))
        plan = solved.plans[0]
        fresh = Placement(plan.shards, plan.ranks, plan.task)
        if plan.task == self.problem.task:
            tables = {table.name: table for table in self.problem.task.tables}  # equal ones, but the same objects
            shards = tuple(replace(shard, table=tables[shard.table.name]) for shard in plan.shards)
            fresh = Placement(shards, plan.ranks)
        self.fresh = nearest(self.problem.of(fresh), fresh, present)
        self.kept: Placement | None = None
        with suppress(DoesNotFitError):
            self.kept = self._valid(nearest(self.problem, kept(present, self.problem, self.fresh), present))

    def port_bytes(self, placement: Placement) -> int:
        """The most bytes that a rank receives or sends if `placement` comes after the present plan."""
        task = self.problem.of(placement).task
        return int(_ports(moved_bytes(self._present, placement.shards, placement.ranks, task)).max())

    def free(self) -> Placement:
        """The cheapest placement; of equally cheap ones, the one that moves fewest bytes."""
        found = [self.fresh, *([] if self.kept is None else [self.kept, *self._descents(np.inf)])]
        return self._returned(self.best(found))

    def within(self, limit: float) -> Placement | None:
        """The cheapest placement whose ranks move at most `limit` bytes; None if none was found."""
        found = [self.fresh]
        if self.kept is not None:
            found += [self.kept, *self._descents(limit), *self._retreats(limit)]
        found = [each for each in found if self.port_bytes(each) <= limit]
        return self._returned(self.best(found)) if found else None

    def best(self, placements: Sequence[Placement]) -> Placement:
        """The cheapest of some placements; of equally cheap ones, the one that moves fewest bytes."""
        return min(placements, key=self._rank_of)

    def _descents(self, limit: float) -> Iterator[Placement]:
        """Placements that the search from the present plan reaches with several sets of sharding types."""
        for spread in self._spreads():
            with suppress(DoesNotFitError):
                found = self._descent(spread, limit)
                if found is not None:
                    yield found

    def _retreats(self, limit: float) -> Iterator[Placement]:
        """The fresh placement with tables back in their kept places until `limit` holds, and a descent from there."""
        if self.fresh.task is not None or self.kept is None or len(self.problem.task.tables) > _MANY_TABLES:
            return
        old, new = _by_table(self.kept), _by_table(self.fresh)
        for _ in range(_MOST_RETURNS):
            ports = _ports(moved_bytes(self._present, *_pairs(new), self.problem.task))
            if ports.max() <= limit:
                yield (found := _of_tables(new))
                yield from filter(None, [self._descent(spread_of(found), limit, found)])
                return
            rank = int(ports.max(axis=0).argmax())
            tried = [{**new, name: old[name]} for name in self._heaviest(rank, old, new)]
            tried = [each for each in tried if self._valid(_of_tables(each)) is not None]
            if not tried:
                return
            new = min(tried, key=lambda each: self.cost_ms(_of_tables(each)))

    def _heaviest(self, rank: int, old: _ByTable, new: _ByTable) -> list[str]:
        """The tables whose change brings most bytes to or from a rank."""
        sizes = {}
        for name in new:
            if new[name] != old[name] and any(rank == r for _, r in (*new[name], *old[name])):
                between = moved_bytes(self._present, *_pairs({name: new[name]}), self.problem.task)
                sizes[name] = int(between[rank].sum() + between[:, rank].sum())
        return sorted((n for n in sizes if sizes[n]), key=lambda name: -sizes[name])[:_NUM_RETREATS]

    def _descent(self, spread: Spread, limit: float, start_at: Placement | None = None) -> Placement | None:
        columns = column_problem(self.problem, spread)
        if columns is None:
            return self._valid(joined(self.problem, None, spread))
        ports = _ports(moved_bytes(self._present, spread.shards, spread.ranks, self.problem.task))
        limits: FloatArray = float(limit) - ports[:, : columns.task.world_size].astype(np.float64)
        placed = staying(self._present, columns) if start_at is None else columns.kinds_of(column_part(start_at))
        start = completed(*placed, columns)
        layouts = descend(start, columns, home_of(self._present, columns), limits, self._rng)
        for layout in layouts[::-1][:_NUM_ENDS]:
            whole = joined(self.problem, columns.placement(layout.kinds, layout.ranks), spread)
            found = nearest(self.problem, whole, self._present)
            if self.port_bytes(found) <= limit and self._valid(found) is not None:
                return found
        return None

    def _spreads(self) -> Iterator[Spread]:
        """The spread tables of the kept and of the fresh placement, and some in between, the smallest tables first."""
        assert self.kept is not None, "the caller has checked it"
        old = kept_spread(self._present, self.problem, self.kept)
        yield old
        if self.fresh.task is not None:
            return
        new = spread_of(self.fresh)
        differing = [n for n in {**old.types, **new.types} if old.types.get(n) != new.types.get(n)]
        sizes = {table.name: table.weight_bytes for table in self.problem.task.tables}
        differing.sort(key=lambda name: sizes[name])
        for count in {len(differing) * part // _NUM_MIXES: None for part in range(1, _NUM_MIXES + 1) if differing}:
            types = {name: kind for name, kind in old.types.items() if name not in differing[:count]}
            types |= {name: new.types[name] for name in differing[:count] if name in new.types}
            with suppress(DoesNotFitError):
                yield placed_spread(types, self._present, self.problem)

    def _returned(self, placement: Placement) -> Placement:
        """The placement with tables back in their kept places, where that makes it no dearer; most bytes first."""
        if self.kept is None or placement.task is not None or placement is self.kept:
            return placement
        old, new = _by_table(self.kept), _by_table(placement)
        differing = [name for name in new if new[name] != old[name]]
        sizes = {table.name: table.weight_bytes for table in self.problem.task.tables}
        groups, prices = [sorted(differing, key=lambda name: -sizes[name])], 0
        limit, most = self._rank_of(placement), _MOST_RETURNS * _MANY_TABLES // max(len(sizes), _MANY_TABLES)
        while groups and prices < most:
            group = groups.pop(0)
            if not group:
                continue
            prices += 1
            tried = _of_tables({**new, **{name: old[name] for name in group}})
            if self._valid(tried) is not None and self._rank_of(tried) <= limit:
                placement, new = tried, _by_table(tried)
            elif len(group) > 1:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        return placement

    def _rank_of(self, placement: Placement) -> tuple[int, int]:
        """What a placement costs, in units of 1e-9 ms, and the bytes that it moves."""
        problem = self.problem.of(placement)
        cost = round(self.cost_ms(placement) * COST_UNITS_PER_MS)
        return cost, total_bytes(problem, placement, self._present)

    def cost_ms(self, placement: Placement) -> float:
        """The predicted cost of a placement for its own variant of the task."""
        return placement_cost_ms(self.problem.of(placement), placement)

    def _valid(self, placement: Placement) -> Placement | None:
        """The placement, or None if it breaks a limit of memory or a constraint."""
        return placement if self.problem.of(placement).allows(placement) else None


def _ports(between: IntArray) -> IntArray:
    """(2, W) bytes that every rank receives and sends."""
    return np.stack([between.sum(axis=0), between.sum(axis=1)])


def _by_table(placement: Placement) -> _ByTable:
    return Present(placement.shards, placement.ranks, 0).placed


def _pairs(placed: _ByTable) -> tuple[tuple[Shard, ...], tuple[int, ...]]:
    pairs = [entry for of in placed.values() for entry in of]
    return tuple(shard for shard, _ in pairs), tuple(rank for _, rank in pairs)


def _of_tables(placed: _ByTable) -> Placement:
    return Placement(*_pairs(placed))
