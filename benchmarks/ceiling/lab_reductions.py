"""Lower bounds on reductions, and passes over dense gradients; for `lab_bounds` and `communication_lines`."""

from __future__ import annotations

import numpy as np

from neuroshard_pipeline.lab.network import BYTES_PER_US, NetworkParams
from neuroshard_pipeline.tables.task import ShardingTask

_GRADIENT_PASSES, _OPTIMIZER_PASSES = 3, {"sgd": 3, "rowwise_adagrad": 5, "adam": 7}
_EAGER_BYTES, _LEAST_SWITCH_RANKS, _SHORT_RING_LOSS, _MOST_CARDS = 8192, 8, 0.5, 8


def gradient_passes(task: ShardingTask) -> int:
    """GPU memory traffic of dense gradients and their optimizer, without the all_reduce, per byte of the gradients."""
    return _GRADIENT_PASSES + _OPTIMIZER_PASSES[task.optimizer]


def reduction_lines(
    network: NetworkParams, is_all_reduce: bool, ranks: int, hosts: int, least_bytes: float = 0.0
) -> list[tuple[float, float]]:
    """Lines (us, us per byte) of a reduction, which costs at least the smallest of them (`lab.network`).

    The reduction is an all_reduce, or else a reduce_scatter or all_gather, of at least `least_bytes` bytes.
    """
    if ranks < 2:
        return [(0.0, 0.0)]
    host, fabric, local = network.host, network.fabric, ranks / hosts
    several, passes, levels = hosts > 1, 1 + is_all_reduce, np.log2(hosts)
    ring = passes * (ranks - 1) / ranks
    link = ring / (host.link_gb_per_s * BYTES_PER_US) * (1 + _SHORT_RING_LOSS / local) if local > 1 else 0.0
    cards = min(local, _MOST_CARDS) * fabric.card_gb_per_s * BYTES_PER_US
    share = fabric.low_latency_share if several else host.low_latency_share
    hops = levels if is_all_reduce else hosts - 1
    start = host.launch_us + host.rank_us * (local - 1)
    start += fabric.hop_us * (1 + least_bytes / (least_bytes + _EAGER_BYTES)) * hops
    busy, fill = max(link, ring / cards if several else 0.0), host.fill_us * (local - 1)
    lines = [(start, busy / share), (start + fill + fabric.ring_fill_us * passes * (hosts - 1), busy)]
    if is_all_reduce:
        reduction = host.switch_reduction if local >= _LEAST_SWITCH_RANKS else 1.0
        tree = max(link / reduction, 2 * (hosts - 1) / hosts / cards)
        if fabric.trees or not several:
            lines += [(start, tree / share), (start + fill + fabric.tree_fill_us * levels, tree)]
    return lines
