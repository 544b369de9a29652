"""What the communication cost model sees of a collective: work and context of every rank, each with its reason.

Shapes: W ranks of a collective, `...` any number of collectives, H hosts, P work terms, F context features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

#: The two collectives of an iteration; each has a network of its own.
COMM_DIRECTIONS: tuple[str, str] = ("forward", "backward")

#: Non-negative work of one rank in one collective, in ms, counts and MiB, with the reason that it takes time.
COMM_WORK_TERMS: dict[str, str] = {
    "wait": "ms until the last rank enters: nobody has everything before that",
    "collective": "1: synchronisation",
    "peers": "world_size - 1: every peer is one message",
    "send_bytes": "own volume sent: bounded by the rank's outgoing bandwidth",
    "receive_bytes": "own volume received: bounded by its incoming bandwidth",
    "largest_send_bytes": "most that any rank sends: whoever receives from it waits",
    "largest_receive_bytes": "most that any rank receives",
    "total_bytes": "volume of all ranks: bounded by what they share (memory bus, switch)",
    "remote_peers": "most peers on other hosts, of the rank and of those peers: a message to them crosses the network",
    "remote_send_bytes": "own volume sent to other hosts: bounded by the rank's network card",
    "remote_receive_bytes": "own volume received from them",
    "remote_port_bytes": "most that a card it depends on, its own or one on another host, sends or receives",
}

#: Terms that depend on the rank's own volume, and do not know hosts.
OWN_VOLUME_TERMS: tuple[str, ...] = ("send_bytes", "receive_bytes")

#: Terms that depend on which ranks share a host; 0 where all do.
REMOTE_TERMS: tuple[str, ...] = tuple(name for name in COMM_WORK_TERMS if name.startswith("remote_"))

#: Context of one rank in one collective, with the reason that it changes the price of work.
COMM_CONTEXT_FEATURES: dict[str, str] = {
    "log_world_size": "more peers, smaller messages",
    "log_batch": "rows per message",
    "log_remote_peers": "peers on other hosts (1 more): which of the two networks decides",
    "log_remote_port": "message size across hosts",
    "log_remote_wait": "wait for ranks on other hosts, from which most of the time is still to come when they enter",
    "log_send": "message size decides between latency and bandwidth",
    "log_receive": "likewise",
    "log_largest_send": "the imbalance, together with the own volume",
    "log_total": "load on what is shared",
    "log_wait": "transfers that the wait hides",
    "log_late": "how much later than the first the rank enters: what it finds already sent",
    "log_mean_wait": "whether most ranks wait, or one is early",
    "wait_per_spread": "0 for the last rank to enter, 1 for the first",
}

#: Volumes and times below these do not matter; they keep logarithms finite.
_FLOOR_MIB = 1e-4
_FLOOR_MS = 1e-2

_BYTES_PER_NUMBER = 4  # pooled embeddings and their gradients travel as fp32
_MIB = float(2**20)


def comm_features(
    dim_sums: ArrayLike,
    start_skew_ms: ArrayLike,
    batch_size: ArrayLike,
    direction: str,
    ranks_per_host: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Features of every rank, from what it does itself and from sums and maxima over ranks.

    Sums and maxima do not know an order: a model of these features takes any world size, and renaming ranks renames
    their costs, as long as ranks that share a host go on sharing one.

    Args:
        dim_sums: (..., W) summed widths of each rank's shards.
        start_skew_ms: (..., W) how much later than the first each rank enters.
        batch_size: global batch, a number or (...).
        direction: one of `COMM_DIRECTIONS`. Forward, a rank sends the pooled rows of its own shards for all
            other ranks' samples; backward, it receives their gradients.
        ranks_per_host: of the cluster, whose hosts ranks fill in order; None where all ranks are on one host.

    Returns:
        Work (..., W, P) and context (..., W, F), before normalisation.
    """
    dims = np.asarray(dim_sums, dtype=np.float64)
    skew = np.asarray(start_skew_ms, dtype=np.float64)
    world = dims.shape[-1]
    batch = np.broadcast_to(np.asarray(batch_size, dtype=np.float64)[..., None], dims.shape)
    unit = batch / world * _BYTES_PER_NUMBER / _MIB  # MiB per column and receiving rank
    out, into = dims * unit * (world - 1), (_over_ranks(np.sum, dims) - dims) * unit
    send, receive = (out, into) if direction == "forward" else (into, out)
    far = _across_hosts(dims, skew, unit, direction, ranks_per_host)
    return _comm_work(send, receive, skew, far), _comm_context(send, receive, skew, batch, far)


@dataclass(frozen=True)
class _AcrossHosts:
    """What crosses the network between hosts, of every rank (..., W): a work term each, and a wait.

    Attributes:
        peers: `remote_peers`.
        send: MiB, `remote_send_bytes`.
        receive: MiB, `remote_receive_bytes`.
        port: MiB, `remote_port_bytes`.
        wait: ms until the last rank on another host enters.
    """

    peers: FloatArray
    send: FloatArray
    receive: FloatArray
    port: FloatArray
    wait: FloatArray


def _across_hosts(
    dims: FloatArray, skew: FloatArray, unit: FloatArray, direction: str, ranks_per_host: int | None
) -> _AcrossHosts:
    """Arguments as those of `comm_features`; `unit` is the MiB per column and receiving rank."""
    world = dims.shape[-1]
    if ranks_per_host is None or world <= ranks_per_host:
        return _AcrossHosts(*(np.zeros_like(dims) for _ in range(5)))
    first = np.arange(0, world, ranks_per_host)
    host = np.arange(world) // ranks_per_host
    peers = np.broadcast_to(float(world) - np.diff(first, append=world)[host], dims.shape)
    of_hosts = np.add.reduceat(dims, first, axis=-1)
    out, into = dims * unit * peers, (of_hosts.sum(axis=-1, keepdims=True) - of_hosts[..., host]) * unit
    send, receive = (out, into) if direction == "forward" else (into, out)

    def elsewhere(values: FloatArray) -> FloatArray:
        return _largest_of_others(np.maximum.reduceat(values, first, axis=-1))[..., host]

    port = np.maximum(send, receive)
    return _AcrossHosts(
        peers=np.maximum(peers, elsewhere(peers)),
        send=send,
        receive=receive,
        port=np.maximum(port, elsewhere(port)),
        wait=np.maximum(elsewhere(skew) - skew, 0.0),
    )


def _largest_of_others(values: FloatArray) -> FloatArray:
    """(..., H) largest of the other values, for every one of at least two."""
    nothing = np.full_like(values[..., :1], -np.inf)
    before = np.maximum.accumulate(np.concatenate([nothing, values[..., :-1]], axis=-1), axis=-1)
    after = np.maximum.accumulate(np.concatenate([nothing, values[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.maximum(before, after)


def _comm_work(send: FloatArray, receive: FloatArray, skew: FloatArray, far: _AcrossHosts) -> FloatArray:
    """(..., W, P) in the order of `COMM_WORK_TERMS`."""
    terms = {
        "wait": skew.max(axis=-1, keepdims=True) - skew,
        "collective": np.ones_like(send),
        "peers": np.full_like(send, send.shape[-1] - 1.0),
        "send_bytes": send,
        "receive_bytes": receive,
        "largest_send_bytes": _over_ranks(np.max, send),
        "largest_receive_bytes": _over_ranks(np.max, receive),
        "total_bytes": _over_ranks(np.sum, send),
        "remote_peers": far.peers,
        "remote_send_bytes": far.send,
        "remote_receive_bytes": far.receive,
        "remote_port_bytes": far.port,
    }
    return np.stack([terms[name] for name in COMM_WORK_TERMS], axis=-1)


def _comm_context(
    send: FloatArray, receive: FloatArray, skew: FloatArray, batch: FloatArray, far: _AcrossHosts
) -> FloatArray:
    """(..., W, F) in the order of `COMM_CONTEXT_FEATURES`."""
    wait = skew.max(axis=-1, keepdims=True) - skew
    late = skew - skew.min(axis=-1, keepdims=True)
    features = {
        "log_world_size": np.full_like(send, np.log(send.shape[-1])),
        "log_batch": np.log(batch),
        "log_remote_peers": np.log(1.0 + far.peers),
        "log_remote_port": np.log(far.port + _FLOOR_MIB),
        "log_remote_wait": np.log(far.wait + _FLOOR_MS),
        "log_send": np.log(send + _FLOOR_MIB),
        "log_receive": np.log(receive + _FLOOR_MIB),
        "log_largest_send": np.log(_over_ranks(np.max, send) + _FLOOR_MIB),
        "log_total": np.log(_over_ranks(np.sum, send) + _FLOOR_MIB),
        "log_wait": np.log(wait + _FLOOR_MS),
        "log_late": np.log(late + _FLOOR_MS),
        "log_mean_wait": np.log(_over_ranks(np.mean, wait) + _FLOOR_MS),
        "wait_per_spread": wait / (wait + late + _FLOOR_MS),
    }
    return np.stack([features[name] for name in COMM_CONTEXT_FEATURES], axis=-1)


def _over_ranks(reduce: Any, values: FloatArray) -> FloatArray:
    """`reduce` over the ranks, of values in sorted order so that rounding does not know the order of ranks either."""
    return np.broadcast_to(reduce(np.sort(values, axis=-1), axis=-1, keepdims=True), values.shape)


def paper_comm_features(dim_sums: FloatArray, start_skew_ms: FloatArray) -> FloatArray:
    """What the paper's network sees of a collective: (..., W) twice to (..., 2 W)."""
    return np.concatenate([dim_sums, start_skew_ms], axis=-1)
