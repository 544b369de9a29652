"""Features of an all-to-all: for every rank, the work that it causes, and the context that changes the price of work.

Shapes: W ranks of a collective, `...` any number of collectives, H hosts, P work terms, F context features.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray, IntArray

#: The two all-to-alls of an iteration. The cost model has a neural network for each.
COMM_DIRECTIONS: tuple[str, str] = ("forward", "backward")

#: Non-negative work terms of one rank in one collective (ms, counts, MiB), most with the reason why they take time.
COMM_WORK_TERMS: dict[str, str] = {
    "wait": "ms until the last rank enters: no rank has everything before that",
    "collective": "1: the ranks synchronise once",
    "peers": "world_size - 1: the rank sends one message to every peer",
    "send_bytes": "own volume sent: limited by the rank's outgoing bandwidth",
    "receive_bytes": "own volume received: limited by its incoming bandwidth",
    "largest_send_bytes": "largest volume that any rank sends: its receivers wait for it",
    "largest_receive_bytes": "largest volume that any rank receives",
    "total_bytes": "volume of all ranks: limited by shared resources (memory bus, switch)",
    "remote_peers": "largest number of peers on other hosts that any rank has: messages between hosts",
    "remote_send_bytes": "own volume sent to other hosts: limited by the rank's network card",
    "remote_receive_bytes": "own volume received from other hosts",
    "remote_port_bytes": "largest volume sent or received by the rank's network card or by one on another host",
}

#: Terms that depend on which ranks share a host. They are 0 if all ranks share one host.
REMOTE_TERMS: tuple[str, ...] = tuple(name for name in COMM_WORK_TERMS if name.startswith("remote_"))

#: Context features of one rank in one collective: what each stands for, or why it changes the cost of the same work.
COMM_CONTEXT_FEATURES: dict[str, str] = {
    "log_world_size": "more peers, smaller messages",
    "log_batch": "rows per message",
    "log_remote_peers": "1 + `remote_peers`: decides whether links inside or between hosts are the bottleneck",
    "log_remote_port": "`remote_port_bytes`: decides between latency and bandwidth across hosts",
    "log_remote_wait": "wait for ranks on other hosts; most of their transfers start only when they enter",
    "log_send": "message size decides between latency and bandwidth",
    "log_receive": "message size, as for `log_send`",
    "log_largest_send": "shows the imbalance, together with the rank's own volume",
    "log_total": "load on shared resources",
    "log_wait": "the rank's transfers overlap with its wait",
    "log_late": "how much later than the first rank this rank enters: some data has already been sent by then",
    "log_mean_wait": "tells whether most ranks wait or only one is early",
    "wait_per_spread": "0 for the last rank to enter; close to 1 for the first, if the last one enters much later",
}


def comm_features(
    dim_sums: ArrayLike,
    start_skew_ms: ArrayLike,
    batch_size: ArrayLike,
    direction: str,
    ranks_per_host: int | None = None,
    ranks: IntArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Features of every rank: its own volumes, and sums and maxima over ranks.

    Sums and maxima exist for any number of ranks and do not depend on their order. A model of these features therefore
    accepts any world size. If ranks are permuted, so are their costs, as long as ranks of one host stay on one host.

    Args:
        dim_sums: (..., W) summed widths of each rank's shards.
        start_skew_ms: (..., W) how much later than the first rank each rank enters the collective.
        batch_size: global batch size: one number for all collectives, or an array (...).
        direction: one of `COMM_DIRECTIONS`. In the forward direction, a rank sends the pooled rows of its own shards
            for the samples of all other ranks; in the backward direction, it receives their gradients.
        ranks_per_host: number of consecutive ranks that share a host; None if all ranks are on one host.
        ranks: (..., K) ranks whose features are wanted; None for all ranks.

    Returns:
        Work (..., K, P) and context (..., K, F), before normalisation; K is W for all ranks.
    """
    from neuroshard_pipeline.cost_models.compiled_features import features  # imported late: numba takes 0.3 s

    *leading, world = np.shape(dim_sums)
    shape = math.prod(leading), world
    dims = np.ascontiguousarray(dim_sums, dtype=np.float64).reshape(shape)
    skew = np.ascontiguousarray(start_skew_ms, dtype=np.float64).reshape(shape)
    # Values are sorted before they are summed, so that their order does not matter.
    columns, waits = np.sort([dims, skew.max(axis=-1, keepdims=True) - skew], axis=-1).sum(axis=-1)
    of_all = np.stack([np.full(leading, batch_size, dtype=np.float64).reshape(-1), columns, waits / world])
    chosen = np.zeros((shape[0], 0), dtype=np.int64) if ranks is None else ranks.reshape(shape[0], ranks.shape[-1])
    work, context = features(dims, skew, of_all, chosen, ranks_per_host or world, direction == "forward")
    return work.reshape(*leading, *work.shape[1:]), context.reshape(*leading, *context.shape[1:])
