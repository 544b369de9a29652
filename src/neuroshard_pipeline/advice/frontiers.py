"""What-ifs that make tables smaller: fewer columns, narrower data types, at most k ids per bag. They change the model.

A *cut* makes a table smaller; it gives up columns, bytes or ids, and saves time: the mean over the ranks of today's
plan, without waits, priced with the smaller table. A point of a *frontier* makes the cuts that save most per unit given
up, up to a share of all units, and is planned anew. If the tables do not fit, the cuts that free most bytes per unit
come first, and the points are the fewest cuts after which all tables together fit, with some room for the search.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.advice.what_ifs import WhatIf
from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.parts import Parts, step_parts
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.search.price import halves_ms, predicted_cost
from neuroshard_pipeline.tables.lookups import local_table
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, DEFAULT_DATA_TYPE, Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Shares of what could be given up; all tables in half precision share a kernel. If the tables do not fit: multiples
#: of the missing bytes.
_SHARES, _SHARES_IN_HALF, _OF_MISSING = (0.05, 0.1, 0.25, 0.5), (0.25, 0.5, 1.0), (1.0, 1.03, 1.1, 1.3)
#: Shares of the ids of a table that its cuts drop.
_DROPPED = (0.02, 0.05, 0.1, 0.2, 0.4)
#: Number of tables that a setting names, and number of tables beyond which every table has only one cut.
_NAMED, _MANY = 8, 100

#: Numbers of bags by length: `lengths[table][n]` bags have n ids.
BagLengths = Mapping[str, ArrayLike]
#: Yields ever smaller tables, with what each gives up in all, and how it is called.
_Cuts = Callable[[Table], Iterator[tuple[Table, float, object]]]


@dataclass(frozen=True)
class _Cut:
    """A smaller table, and what it gives up and saves beyond the table's cut before; `score` is saved per unit."""

    table: Table
    text: str
    units: float
    saved: float
    score: float


def frontiers(
    task: ShardingTask, plan: Plan | None, models: CostModels, memory: MemoryModel, lengths: BagLengths
) -> Iterator[WhatIf]:
    """The points of all frontiers, one what-if each; `plan` is the plan of today, None if the tables do not fit.

    `lengths` holds numbers of bags by length; lengths of other tables are assumed to be geometrically distributed.
    """
    kinds: tuple[tuple[str, str, _Cuts, str], ...] = (
        ("narrower embeddings", "columns", _narrower, "a projection to the old width in the dense model"),
        ("half-precision weights", "MiB", _half, "weights are rounded to half precision"),
        (
            "fewer ids per bag",
            "ids per sample",
            partial(_sampled, task.batch_size, lengths),
            "ids; the time to drop them",
        ),
    )
    size = partial(memory.shard_bytes, task=task)
    missing = sum(size(whole(table)) for table in task.tables) - sum(memory.limits(task))
    for topic, unit, cuts, costs in kinds:
        order = _ordered(task, cuts, size if plan is None else lambda shard: mean_ms(plan, models, shard.table))
        units, saved = np.cumsum([[cut.units, cut.saved] for cut in order], axis=0).reshape(-1, 2).T
        shares = np.array(_SHARES_IN_HALF if cuts is _half else _SHARES)
        marks = np.array(_OF_MISSING) * max(missing, 1) if plan is None else shares * sum(units[-1:])
        counts = np.searchsorted(saved if plan is None else units, marks * (1 - 1e-9)) + 1
        for count in sorted({int(count) for count in counts if count <= len(order)}):
            made = {cut.table.name: cut for cut in order[:count]}
            named = [f"{each}: {cut.text}" for each, cut in list(made.items())[:_NAMED]]
            more = f" and {len(made) - _NAMED} more" if len(made) > _NAMED else ""
            given = float(units[count - 1])
            name = f"{topic}: {given:,.4g} {unit}, {len(made)} of {len(task.tables)} tables"
            change = partial(_with_tables, {each: cut.table for each, cut in made.items()})
            yield WhatIf(name, topic, change, costs, ", ".join(named) + more, True, given_up=given)


def _with_tables(smaller: Mapping[str, Table], task: ShardingTask) -> ShardingTask:
    return replace(task, tables=[smaller.get(table.name, table) for table in task.tables])


def _ordered(task: ShardingTask, cuts: _Cuts, cost: Callable[[Shard], float]) -> list[_Cut]:
    """The cuts of all tables, those first that save most of `cost` per unit; a table's cuts stay in their order."""
    found = []
    for table in task.tables:
        units, least, before = 0.0, math.inf, cost(whole(table))
        for smaller, given_up, text in islice(cuts(table), 1 if len(task.tables) > _MANY else None):
            after = cost(whole(smaller))
            least = min(least, (before - after) / (given_up - units))
            found.append(_Cut(smaller, str(text), given_up - units, before - after, least))
            units, before = given_up, after
    return sorted(found, key=lambda cut: -cut.score)


def mean_ms(plan: Plan, models: CostModels, table: Table) -> float:
    """Mean ms over the ranks without waits, with this table in the place of the one of its name.

    A forward all-to-all without waits is taken to cost as much as a backward one.
    """
    parts = _parts(plan, models, table)
    return float(np.mean(2 * halves_ms(parts, models, plan.task.batch_size).sum(axis=1) - parts.own_ms))


def plan_cost(plan: Plan, models: CostModels, table: Table | None = None) -> PlanCost:
    """The cost of a plan, with another table, such as a narrower one, in the place of the one of its name."""
    return predicted_cost(_parts(plan, models, table), models, plan.task.batch_size)


def _parts(plan: Plan, models: CostModels, table: Table | None) -> Parts:
    shards = [_with_table(shard, table) if table else shard for shard in plan.shards]
    return step_parts(plan.task, shards, plan.ranks, models)


def _with_table(shard: Shard, table: Table) -> Shard:
    """The shard with the same share of another table's columns; prices do not depend on where they begin."""
    if shard.table.name != table.name:
        return shard
    table = replace(table, compute_kernel=shard.table.compute_kernel, cache_load_factor=shard.table.cache_load_factor)
    width = shard.embedding_dim * table.embedding_dim // shard.table.embedding_dim
    width = max(COLUMN_GRANULARITY, width // COLUMN_GRANULARITY * COLUMN_GRANULARITY)
    return replace(shard, table=table, column_offset=0, embedding_dim=width)


def _narrower(table: Table) -> Iterator[tuple[Table, float, object]]:
    """Widths halved again and again, in multiples of 4."""
    width = table.embedding_dim
    while width > COLUMN_GRANULARITY:
        width = max(COLUMN_GRANULARITY, width // 2 // COLUMN_GRANULARITY * COLUMN_GRANULARITY)
        yield replace(table, embedding_dim=width), float(table.embedding_dim - width), width


def _half(table: Table) -> Iterator[tuple[Table, float, object]]:
    if table.data_type == DEFAULT_DATA_TYPE:
        yield replace(table, data_type="fp16"), table.weight_bytes / 2 / 2**20, "DataType.FP16"


def _sampled(batch_size: int, lengths: BagLengths, table: Table) -> Iterator[tuple[Table, float, object]]:
    """The smallest numbers of ids per bag that drop at most the `_DROPPED` shares of ids, as if at random."""
    dropped = dropped_shares(lengths.get(table.name), table.pooling_factor / table.num_features)
    ks = [int(np.argmax(dropped <= share)) for share in _DROPPED]
    for k in sorted({k for k in ks if k >= 1 and dropped[k] > 0}, reverse=True):
        known, kept = with_profile(table, batch_size), 1.0 - float(dropped[k])
        fewer = replace(local_table(known, batch_size, 1.0 / kept), pooling_factor=table.pooling_factor * kept)
        yield fewer, table.pooling_factor * float(dropped[k]), f"at most {k}"


def dropped_shares(lengths: ArrayLike | None, mean: float) -> FloatArray:
    """(K,) shares of all ids that are dropped if bags keep at most 0, 1, ..., K - 1 of them.

    `lengths` are the numbers of bags of every length; None stands for a geometric distribution with this mean.
    """
    if lengths is None:
        longest = math.ceil(math.log(_DROPPED[0]) / math.log(mean / (1.0 + mean)))
        return np.asarray((mean / (1.0 + mean)) ** np.arange(longest + 1))
    longer = np.cumsum(np.asarray(lengths, dtype=float)[:0:-1])[::-1]  # bags with at least 1, 2, ... ids
    return np.asarray(1.0 - np.append(0.0, np.cumsum(longer)) / max(longer.sum(), 1.0))
