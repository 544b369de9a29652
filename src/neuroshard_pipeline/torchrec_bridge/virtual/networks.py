"""Times of collectives on modelled networks, for the replay of logs.

Shapes: n ranks of a collective.
"""

from collections.abc import Callable, Sequence

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import COLLECTIVES, Collective, NetworkParams, collective_us, rank_costs_ms
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective as Logged

#: `network(collectives, starts_ms)` returns the time in ms when a collective is done on each rank, (n,). It gets
#: what each rank logged, and the times when they start, (n,), in the order of `log.Collective.ranks`.
Network = Callable[[Sequence[Logged], FloatArray], FloatArray]


def modelled_network(params: NetworkParams) -> Network:
    """The times of `lab.network`; ranks fill hosts in order.

    A message of an alltoall starts when both its ranks are there, and any other collective when all its ranks are
    there. `broadcast`, `gather`, `scatter` and `reduce` take as long as an all_gather of the same size, and a barrier
    as long as an all_reduce of one byte.
    """

    def done_ms(collectives: Sequence[Logged], starts_ms: FloatArray) -> FloatArray:
        kind, ranks = collectives[0].kind, np.array(collectives[0].ranks)
        if kind == "alltoall":
            return starts_ms + _alltoall_ms([each.sent_bytes for each in collectives], starts_ms, ranks, params)
        hosts = len(np.unique(ranks // params.gpus_per_host))
        size = max(each.sent_bytes[0] for each in collectives)
        if kind == "barrier":
            kind, size = "all_reduce", 1
        if size == 0:  # a host without tables of a group; NCCL does nothing
            return starts_ms
        named: Collective = next((each for each in COLLECTIVES if each == kind), "all_gather")
        us = float(collective_us(named, size, len(ranks), hosts, params))
        return np.full(len(ranks), starts_ms.max() + us / 1e3)

    return done_ms


def _alltoall_ms(
    sent_bytes: Sequence[Sequence[int]], starts_ms: FloatArray, ranks: np.ndarray, params: NetworkParams
) -> FloatArray:
    """Cost of every rank from its own start, (n,)."""
    world_size = int(ranks.max()) + 1
    messages, starts = np.zeros((1, world_size, world_size)), np.full((1, world_size), starts_ms.min())
    messages[0, ranks[:, None], ranks] = sent_bytes
    starts[0, ranks] = starts_ms
    return rank_costs_ms(messages, starts, params)[0, ranks]
