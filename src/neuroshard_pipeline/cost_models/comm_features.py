"""Features of an all-to-all: for every rank, the work that it causes, and the context that changes the price of work.

Shapes: W ranks of a collective, `...` any number of collectives, H hosts, P work terms, F context features.
"""

from collections.abc import Iterable, Mapping

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

#: Volumes and times below these floors are negligible. The floors keep logarithms finite.
_FLOOR_MIB = 1e-4
_FLOOR_MS = 1e-2

_BYTES_PER_NUMBER = 4  # fp32; if the links carry half precision, callers pass half the summed widths
_MIB = float(2**20)


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
    dims = np.asarray(dim_sums, dtype=np.float64)
    skew = np.asarray(start_skew_ms, dtype=np.float64)
    world = dims.shape[-1]
    batch = np.asarray(batch_size, dtype=np.float64)[..., None]
    unit = batch / world * _BYTES_PER_NUMBER / _MIB  # MiB per column and receiving rank
    out, into = dims * unit * (world - 1), (_sum(dims) - dims) * unit
    send, receive = (out, into) if direction == "forward" else (into, out)
    wait = skew.max(axis=-1, keepdims=True) - skew
    of_all = {"largest_send": send.max(axis=-1, keepdims=True), "largest_receive": receive.max(axis=-1, keepdims=True)}
    of_all |= {"total": _sum(send), "mean_wait": _sum(wait) / world, "batch": batch}
    own = {"send": send, "receive": receive, "wait": wait, "late": skew - skew.min(axis=-1, keepdims=True)}
    own |= _across_hosts(dims, skew, unit, direction, ranks_per_host)
    if ranks is not None:
        own = {name: np.take_along_axis(values, ranks, axis=-1) for name, values in own.items()}
    shape = own["send"].shape
    values = own | of_all
    return _stacked(_comm_work(values, world), COMM_WORK_TERMS, shape), _stacked(
        _comm_context(values, world), COMM_CONTEXT_FEATURES, shape
    )


def _sum(values: FloatArray) -> FloatArray:
    """(..., 1) sum over ranks. Values are sorted first, so that their order does not matter."""
    return np.asarray(np.sort(values, axis=-1).sum(axis=-1, keepdims=True))


def _stacked(features: Mapping[str, FloatArray | float], names: Iterable[str], shape: tuple[int, ...]) -> FloatArray:
    """(..., K, number of names) the features in the order of `names`, each (..., K) or (..., 1), or one for all."""
    found = np.empty((*shape, len(features)))
    for number, name in enumerate(names):
        found[..., number] = features[name]
    return found


def _across_hosts(
    dims: FloatArray, skew: FloatArray, unit: FloatArray, direction: str, ranks_per_host: int | None
) -> dict[str, FloatArray]:
    """`REMOTE_TERMS` of every rank, and `remote_wait`, ms until the last rank on another host enters: each (..., W).

    Arguments are those of `comm_features`; `unit` is the MiB per column and receiving rank.
    """
    world = dims.shape[-1]
    if ranks_per_host is None or world <= ranks_per_host:
        return {name: np.zeros_like(dims) for name in (*REMOTE_TERMS, "remote_wait")}
    first = np.arange(0, world, ranks_per_host)
    host = np.arange(world) // ranks_per_host
    peers = np.broadcast_to(float(world) - np.diff(first, append=world)[host], dims.shape)
    of_hosts = np.add.reduceat(dims, first, axis=-1)
    out, into = dims * unit * peers, (of_hosts.sum(axis=-1, keepdims=True) - of_hosts[..., host]) * unit
    send, receive = (out, into) if direction == "forward" else (into, out)
    port = np.maximum(send, receive)

    def elsewhere(values: FloatArray) -> FloatArray:
        return _largest_of_others(np.maximum.reduceat(values, first, axis=-1))[..., host]

    return {
        "remote_peers": np.maximum(peers, elsewhere(peers)),
        "remote_send_bytes": send,
        "remote_receive_bytes": receive,
        "remote_port_bytes": np.maximum(port, elsewhere(port)),
        "remote_wait": np.maximum(elsewhere(skew) - skew, 0.0),
    }


def _largest_of_others(values: FloatArray) -> FloatArray:
    """For every one of at least two values (..., H), the largest of the other values: (..., H)."""
    nothing = np.full_like(values[..., :1], -np.inf)
    before = np.maximum.accumulate(np.concatenate([nothing, values[..., :-1]], axis=-1), axis=-1)
    after = np.maximum.accumulate(np.concatenate([nothing, values[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.maximum(before, after)


def _comm_work(values: Mapping[str, FloatArray], world: int) -> dict[str, FloatArray | float]:
    """The terms of `COMM_WORK_TERMS`, from volumes and times by name."""
    return {
        "wait": values["wait"],
        "collective": 1.0,
        "peers": world - 1.0,
        "send_bytes": values["send"],
        "receive_bytes": values["receive"],
        "largest_send_bytes": values["largest_send"],
        "largest_receive_bytes": values["largest_receive"],
        "total_bytes": values["total"],
        **{name: values[name] for name in REMOTE_TERMS},
    }


def _comm_context(values: Mapping[str, FloatArray], world: int) -> dict[str, FloatArray | float]:
    """The features of `COMM_CONTEXT_FEATURES`, from volumes and times by name."""
    return {
        "log_world_size": float(np.log(world)),
        "log_batch": np.log(values["batch"]),
        "log_remote_peers": np.log(1.0 + values["remote_peers"]),
        "log_remote_port": np.log(values["remote_port_bytes"] + _FLOOR_MIB),
        "log_remote_wait": np.log(values["remote_wait"] + _FLOOR_MS),
        "log_send": np.log(values["send"] + _FLOOR_MIB),
        "log_receive": np.log(values["receive"] + _FLOOR_MIB),
        "log_largest_send": np.log(values["largest_send"] + _FLOOR_MIB),
        "log_total": np.log(values["total"] + _FLOOR_MIB),
        "log_wait": np.log(values["wait"] + _FLOOR_MS),
        "log_late": np.log(values["late"] + _FLOOR_MS),
        "log_mean_wait": np.log(values["mean_wait"] + _FLOOR_MS),
        "wait_per_spread": values["wait"] / (values["wait"] + values["late"] + _FLOOR_MS),
    }
