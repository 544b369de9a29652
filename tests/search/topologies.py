"""Costs of a byte between the ranks of unequal hosts."""

from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.arrays import FloatArray


def two_level_topology(
    ranks_per_host: Sequence[int], inside_ms_per_byte: Sequence[float], across_ms_per_byte: Sequence[float]
) -> FloatArray:
    """(W, W) ms per byte between the ranks of hosts, numbered host by host.

    Args:
        ranks_per_host: number of ranks of every host.
        inside_ms_per_byte: for every host, the cost of a byte between two of its ranks.
        across_ms_per_byte: for every host, the cost of a byte between one of its ranks and another host. Between two
            hosts, the larger of both values counts.
    """
    host = np.repeat(np.arange(len(ranks_per_host)), ranks_per_host)
    inside, across = np.asarray(inside_ms_per_byte, float)[host], np.asarray(across_ms_per_byte, float)[host]
    cost = np.where(host[:, None] == host, inside[:, None], np.maximum(across[:, None], across))
    np.fill_diagonal(cost, 0.0)
    return cost
