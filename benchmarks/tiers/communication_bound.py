"""A lower bound on the communication time of a step of sequence tables by the lab's formulas, for every plan.

The time is that of `tier_costs.collectives_ms`: all collectives of a step on the slowest rank, without waiting. The
bound holds with and without tiers, and with and without `index_dedup`. Setting: H hosts of L ranks, W = H L ranks. Rows
of one table that are equally popular form a class. A plan puts each row into one of three states:

- cold: one rank holds it. All ranks together send n ids of the row to this rank, get n rows, and send n gradients.
- host: every host holds it. The n ids, rows and gradients stay inside the hosts. The gradients of its copies are added
  up by an all_reduce between hosts.
- hot: every rank holds it. An all_reduce over all ranks adds up the gradients.

The slowest rank takes at least as long as the mean over ranks. The collectives of one module (its tables have equal
widths) and one state run one after the other. Averaged over ranks, they cost at least the smallest of several lines
(linear functions of the bytes), which `communication_lines` derives. For one choice of used states and of their lines,
the cost is thus a constant plus a number per row and state. The states of rows are coupled only by the memory of all
ranks. With a price per byte of memory (a Lagrange multiplier), every row takes its cheapest state, and the sum minus
the price of all memory is a lower bound for any price. Each module counts with its smallest sum over all choices of
states and lines. The price with the largest bound is taken.

The bound leaves out the bytes of the lengths of bags, imbalance between ranks, part of the latency of large reductions,
and buffers in memory. It assumes that the rows of a host tier are spread evenly over the ranks of a host, as the search
does. The ids that deduplication leaves are those of the lab's own estimate (`tables.dedup`).

Shapes: K classes of rows of a table, R classes of all tables of a module, S states.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from communication_lines import COLD, HOST, HOT, Line, state_lines
from crossing_bound import tier_row_bytes
from row_popularity import RowPopularity
from scipy.optimize import minimize_scalar

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.tables.kinds import TIER_KINDS
from neuroshard_pipeline.tables.lookups import local_table
from neuroshard_pipeline.tables.profile import batch_indices, expected_rows
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts

_US_PER_MS = 1e3
#: Prices of memory that are tried first: the lowest one, as a share of the price at which no row has copies, and how
#: many there are.
_LEAST_PRICE, _NUM_PRICES = 1e-9, 28


@dataclass(frozen=True)
class Classes:
    """Classes of equally popular rows of the tables of one module.

    Attributes:
        names: table of every class, (R,).
        rows: number of rows of every class, (R,).
        ids: ids that ranks send each other for one cold or host row, per step, (R,).
        width: columns of every class's table, (R,).
        row_bytes: bytes of a row on all ranks together in each state, (S, R).
    """

    names: Sequence[str]
    rows: FloatArray
    ids: FloatArray
    width: FloatArray
    row_bytes: FloatArray


@dataclass(frozen=True)
class CommunicationBound:
    """A lower bound on the communication time, and the rows' states where it is attained.

    Attributes:
        least_ms: the bound.
        fixed_ms: the part of the cost at these states that depends on no row.
        exchange_ms: the part for ids and rows.
        reduction_ms: the part for gradients of copies.
        cuts: the cuts of each table at these states; the rows may take somewhat more memory than the ranks have.
        price: ms per byte of memory.
    """

    least_ms: float
    fixed_ms: float
    exchange_ms: float
    reduction_ms: float
    cuts: Mapping[str, Cuts]
    price: float


@dataclass(frozen=True)
class _Chosen:
    """A choice of states and lines of one module, its cost including that of memory, and every class's state (R,)."""

    total_us: float
    lines: tuple[Line | None, ...]
    states: IntArray


def communication_bound(
    task: ShardingTask, popularities: Mapping[str, RowPopularity], memory: MemoryModel, network: NetworkParams
) -> CommunicationBound:
    """The bound for the sequence tables of a task; other tables count neither as communication nor as memory.

    Args:
        task: the task; its `index_dedup` says whether a rank sends each id once.
        popularities: the distribution of the ids of every sequence table.
        memory: gives the share of the ranks' memory that tables may use, and the state of the optimizer.
        network: the modelled cluster; the task overrides its number of GPUs per host.

    Raises:
        TaskError: the task has one rank, no sequence table, or several replica groups.
    """
    network = network.model_copy(update={"gpus_per_host": task.ranks_per_host})
    modules = row_classes(task, popularities, memory)
    lines = state_lines(task, network)
    capacity = float(sum(memory.limits(task)))

    def at(price: float) -> tuple[float, list[_Chosen]]:
        chosen = [_cheapest(of, lines, price) for of in modules]
        return sum(each.total_us for each in chosen) - price * capacity, chosen

    # At this price, copies of the most popular row cost more than they can save.
    most = max(float((_row_us(of, lines[COLD][0]) / of.row_bytes[COLD]).max()) for of in modules)
    price = _best_price(lambda price: at(price)[0], most)
    least_us, chosen = at(price)
    return _found(modules, chosen, least_us, price)


def row_classes(task: ShardingTask, popularities: Mapping[str, RowPopularity], memory: MemoryModel) -> list[Classes]:
    """The classes of rows of every module."""
    tables = [table for table in task.tables if table.pooling == "none"]
    if task.world_size == 1 or not tables or task.num_replica_groups > 1:
        raise TaskError(
            f"{task.task_id}: the bound is for several ranks, one replica group and sequence tables; the task has "
            f"{task.world_size} ranks, {task.num_replica_groups} replica groups and {len(tables)} sequence tables"
        )
    of_module = defaultdict(list)
    for table in tables:
        of_module[table.embedding_module].append(table)
    return [_classes(members, task, popularities, memory) for members in of_module.values()]


def _classes(
    tables: Sequence[Table], task: ShardingTask, popularities: Mapping[str, RowPopularity], memory: MemoryModel
) -> Classes:
    sizes = [len(popularities[table.name].rows) for table in tables]
    row_bytes = [[tier_row_bytes(table, kind, task, memory) for table in tables] for kind in TIER_KINDS]
    return Classes(
        names=np.repeat([table.name for table in tables], sizes).tolist(),
        rows=np.concatenate([popularities[table.name].rows for table in tables]).astype(float),
        ids=np.concatenate([_sent_ids(table, popularities[table.name], task) for table in tables]),
        width=np.repeat([float(table.embedding_dim) for table in tables], sizes),
        row_bytes=np.repeat(np.array(row_bytes), sizes, axis=1),
    )


def _sent_ids(table: Table, popularity: RowPopularity, task: ShardingTask) -> FloatArray:
    """Ids per step that all ranks send for one row of each class, (K,).

    With deduplication, the lab derives them from the reuse bins of the rows, as `tables.dedup` does.
    """
    ids = task.batch_size * table.pooling_factor * popularity.popularity
    if not task.index_dedup:
        return np.asarray(ids)
    number = batch_indices(table.pooling_factor, task.batch_size)
    of_bins = np.array([expected_rows(np.ones(1), np.array([each]), number) for each in popularity.popularity])
    return np.minimum(ids, task.world_size * of_bins @ _ranks_with_row(table, task))


def _ranks_with_row(table: Table, task: ShardingTask) -> FloatArray:
    """For a row of each reuse bin, the expected share of the ranks whose samples contain it, (17,)."""
    one_row = replace(table, popularity=None, unique_rows=1.0)
    bins = [tuple(map(float, row)) for row in np.eye(NUM_REUSE_BINS)]
    found = [local_table(replace(one_row, reuse=own), task.batch_size, task.world_size).unique_rows for own in bins]
    return np.array(found, dtype=float)


def _row_us(of: Classes, line: Line) -> FloatArray:
    """Cost of one row of each class, (R,)."""
    return np.asarray(of.ids * (line.id_us + of.width * line.float_us) + of.width * line.gradient_us)


def _cheapest(of: Classes, lines: Sequence[Sequence[Line]], price: float) -> _Chosen:
    """The cheapest choice of states and lines of a module, with memory at a price in us per byte."""
    charged = [
        [None, *((line, _row_us(of, line) + price * of.row_bytes[state]) for line in own)]
        for state, own in enumerate(lines)
    ]
    best: tuple[float, tuple[Line | None, ...], list[FloatArray]] | None = None
    for chosen in itertools.product(*charged):
        used = [each for each in chosen if each is not None]
        if not used:
            continue
        least = used[0][1]
        for _, costs in used[1:]:
            least = np.minimum(least, costs)
        total = sum(line.fixed_us for line, _ in used) + float(of.rows @ least)
        if best is None or total < best[0]:
            none = np.full(len(of.rows), np.inf)
            best = (total, tuple(each and each[0] for each in chosen), [none if e is None else e[1] for e in chosen])
    assert best is not None, "cold rows always have lines"
    return _Chosen(best[0], best[1], np.argmin(best[2], axis=0))


def _best_price(value: Callable[[float], float], most: float) -> float:
    """The price between 0 and `most` with the largest value; the value is concave in the price."""
    prices = most * np.geomspace(_LEAST_PRICE, 1.0, _NUM_PRICES)
    place = int(np.argmax([value(price) for price in prices]))
    low, high = float(prices[max(place - 1, 0)]), float(prices[min(place + 1, _NUM_PRICES - 1)])
    found = minimize_scalar(lambda price: -value(price), bounds=(low, high), method="bounded", options={"xatol": 0.0})
    return max((0.0, float(prices[place]), float(found.x)), key=value)


def _found(modules: Sequence[Classes], chosen: Sequence[_Chosen], least_us: float, price: float) -> CommunicationBound:
    fixed_us = exchange_us = reduction_us = 0.0
    cuts: dict[str, Cuts] = {}
    for of, own in zip(modules, chosen, strict=True):
        for state, line in enumerate(own.lines):
            rows = of.rows * (own.states == state)
            if line is not None:
                fixed_us += line.fixed_us
                exchange_us += float(rows @ (of.ids * (line.id_us + of.width * line.float_us)))
                reduction_us += float(rows @ of.width) * line.gradient_us
        for name in dict.fromkeys(of.names):
            is_own = np.array(of.names) == name
            cuts[name] = Cuts(*(int(of.rows[is_own & (own.states == state)].sum()) for state in (HOT, HOST)))
    parts = (each / _US_PER_MS for each in (least_us, fixed_us, exchange_us, reduction_us))
    return CommunicationBound(*parts, cuts=cuts, price=price / _US_PER_MS)
