"""Lines below the cost of the collectives of sequence tables, by the lab's formulas, for each state of rows.

Setting, states and modules are those of `communication_bound`. Averaged over ranks, the collectives of one module and
state cost at least the smallest of several lines, each a constant plus a rate times the number of bytes:

1. All-to-alls across hosts, for cold rows: if several hosts have cold rows, every rank exchanges data with ranks of
   other hosts and pays the constant, which contains `peer_us` for all W - L of them. On average, a rank sends 1 / W of
   the bytes, of which the share (H - 1) / H crosses hosts. If one host has all cold rows, the ranks of other hosts pay
   the constant. The L cards of this host send or receive all bytes that cross hosts, and every rank waits for at least
   one of these cards, which makes the rate H times as large.
2. All-to-alls on one host, and those of host rows: every rank exchanges data with the rank that has most of it, which
   has at least the mean.
3. Reductions: the lines of `lab_reductions.reduction_lines`, which hold for the faster one of ring and tree.

The sizes of messages are announced by one more all-to-all, which always costs the same.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ceiling"))

from lab_reductions import reduction_lines

from neuroshard_pipeline.lab.network import BYTES_PER_US, NetworkParams, collective_us
from neuroshard_pipeline.search.memory import ID_BYTES
from neuroshard_pipeline.tables.kinds import TIER_KINDS
from neuroshard_pipeline.tables.task import COMM_BYTES, ShardingTask

#: Positions of `TIER_KINDS` in arrays of states.
HOT, HOST, COLD = (TIER_KINDS.index(kind) for kind in ("hot", "host", "cold"))

_FLOAT_BYTES, _SPLIT_BYTES = 4, 24.0


class Line(NamedTuple):
    """A lower bound in us on the cost of rows in one state: `fixed_us` once, plus that of the rows' ids and floats.

    Attributes:
        fixed_us: constant of all collectives of the state.
        id_us: per id that ranks send each other, whatever the width of its table.
        float_us: per float of a row that ranks exchange, forward and backward together.
        gradient_us: per float of a row with copies.
    """

    fixed_us: float
    id_us: float
    float_us: float
    gradient_us: float


def state_lines(task: ShardingTask, network: NetworkParams) -> list[list[Line]]:
    """The lines of each state, in the order of `TIER_KINDS`; host rows have none on one host."""
    hot = [Line(fixed, 0.0, 0.0, _FLOAT_BYTES * rate) for fixed, rate in _all_reduce(network, task.world_size, task)]
    host = []
    if task.num_hosts > 1:
        local = task.ranks_per_host
        for fixed, rate in _all_reduce(network, task.num_hosts, task):
            reduced = _FLOAT_BYTES * rate / local
            if local == 1:
                host.append(Line(fixed, 0.0, 0.0, reduced))
                continue
            inside = _exchanges(task, network, local, _on_one_host(task, network))
            host += [own._replace(fixed_us=own.fixed_us + fixed, gradient_us=reduced) for own in inside]
    world = task.world_size
    exchange = _across_hosts(task, network) if task.num_hosts > 1 else _on_one_host(task, network)
    states = {HOT: hot, HOST: host, COLD: list(_exchanges(task, network, world, exchange))}
    return [_undominated(states[state]) for state in range(len(TIER_KINDS))]


def _all_reduce(network: NetworkParams, ranks: int, task: ShardingTask) -> list[tuple[float, float]]:
    return reduction_lines(network, True, ranks, task.num_hosts)


def _across_hosts(task: ShardingTask, network: NetworkParams) -> list[tuple[float, float]]:
    """Lines (us, us per byte that all ranks send) of an all-to-all with cold rows on several hosts, or on one."""
    hosts, fabric = task.num_hosts, network.fabric
    latency = fabric.hop_us + fabric.peer_us * (task.world_size - task.ranks_per_host)
    rate = fabric.card_gb_per_s * BYTES_PER_US * fabric.alltoall_share ** np.log2(hosts)
    crosses = (hosts - 1) / hosts
    each = crosses / (task.world_size * rate)
    launch = network.host.launch_us
    return [(launch + latency, each), (launch + crosses * latency, hosts * each)]


def _on_one_host(task: ShardingTask, network: NetworkParams) -> list[tuple[float, float]]:
    """Lines (us, us per byte that all ranks of the task send, also to themselves) of all-to-alls inside hosts."""
    host, local = network.host, task.ranks_per_host
    per_byte = (local - 1) / local / (task.world_size * host.link_gb_per_s * BYTES_PER_US)
    start = host.launch_us + host.rank_us * (local - 1)
    return [(start, per_byte / host.low_latency_share), (start + host.fill_us * (local - 1), per_byte)]


def _exchanges(
    task: ShardingTask, network: NetworkParams, ranks: int, lines: Sequence[tuple[float, float]]
) -> Iterator[Line]:
    """Lines of all all-to-alls of a state: sizes, lengths and ids, then rows and their gradients.

    `lines` are those of one all-to-all among `ranks` ranks. Across hosts, the same line holds for all all-to-alls of a
    state: the first if several hosts have cold rows, the second if one host has all of them.
    """
    across = ranks > task.ranks_per_host
    splits = float(collective_us("alltoall", _SPLIT_BYTES * ranks, ranks, task.num_hosts if across else 1, network))
    least = min(fixed for fixed, _ in lines)
    number_bytes = COMM_BYTES[task.comm_precision]
    has_ids = not task.pipelines_input_dist
    for of_ids, of_rows in zip(lines, lines, strict=True) if across else itertools.product(lines, repeat=2):
        lengths = of_ids[0] if across else least
        fixed = has_ids * (splits + lengths + of_ids[0]) + 2 * of_rows[0]
        yield Line(fixed, has_ids * ID_BYTES * of_ids[1], 2 * number_bytes * of_rows[1], 0.0)


def _undominated(lines: Sequence[Line]) -> list[Line]:
    """The lines without those that are nowhere below another one."""
    distinct = list(dict.fromkeys(lines))
    return [
        line
        for line in distinct
        if not any(other != line and all(a <= b for a, b in zip(other, line, strict=True)) for other in distinct)
    ]
