"""The communication cost model: what every rank pays for an all-to-all, for any world size.

Shapes: W ranks of a collective, `...` any number of collectives, P work terms, F context features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.cost_models import architectures, checkpoint
from neuroshard_pipeline.cost_models.intervals import CALIBRATION_FIELDS, Calibration, member_spread
from neuroshard_pipeline.cost_models.normalisation import NORMALISATION_FIELDS, Normalisation
from neuroshard_pipeline.errors import CostModelError

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


#: Ranks whose costs are computed together: their hidden layers stay in the level-2 cache. 330 collectives of 8 ranks
#: take 3.8 ms instead of 8.6 on one core of an AMD EPYC.
_CHUNK_RANKS = 1024

#: More columns than any rank holds: 5,000 tables of the widest kind.
MAX_DIM_SUM = 1e8


@dataclass(frozen=True)
class CommNetwork:
    """The network of one direction.

    Attributes:
        weights: members first.
        normalisation: scaling of its features.
        calibration: of its prediction intervals; None before it is calibrated, which training does.
    """

    weights: dict[str, FloatArray]
    normalisation: Normalisation
    calibration: Calibration | None = None


@dataclass(frozen=True)
class CommCostModel:
    """Predicts forward and backward all-to-all costs; NumPy only.

    Attributes:
        architecture: `universal`, or `paper` for the fixed-size rival.
        networks: per direction of `COMM_DIRECTIONS`.
        batch_size: the global batch that most training samples had.
        world_sizes: world sizes trained on, ascending; `paper` has one and refuses all others.
        provenance: hardware, data versions and training settings, JSON values.
    """

    architecture: str
    networks: dict[str, CommNetwork]
    batch_size: int
    world_sizes: tuple[int, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks_per_host(self) -> int | None:
        """Of the cluster that was trained on; None where all ranks were on one host."""
        return ranks_per_host_of(self.provenance)

    def predict(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward cost in ms of every rank, from its own start until it has everything.

        The backward collective follows the dense model's gradients, which all ranks have at once: its cost does
        not depend on the start skew.

        Args:
            dim_sums: (..., W).
            start_skew_ms: (..., W) of the forward collective.
            batch_size: global batch.

        Returns:
            Two arrays (..., W).

        Raises:
            CostModelError: shapes differ, or `paper` is asked for a world size that it was not trained on.
        """
        return self.forward_ms(dim_sums, start_skew_ms, batch_size), self.backward_ms(dim_sums, batch_size)

    def forward_ms(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> FloatArray:
        """The forward half of `predict`."""
        return self._costs("forward", *_forward_inputs(dim_sums, start_skew_ms), batch_size)

    def backward_ms(self, dim_sums: ArrayLike, batch_size: int) -> FloatArray:
        """The backward half of `predict`."""
        return self._costs("backward", *_backward_inputs(dim_sums), batch_size)

    def forward_interval_ms(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> FloatArray:
        """Lower and upper bound of every rank's forward cost (..., W, 2), between which 90 % of measurements lie.

        The interval is wide where the members disagree, and grows with how far a rank's context lies outside the
        training range (`intervals.Calibration`). It takes the start skews as given.

        Raises:
            CostModelError: as `predict`, or the model is not calibrated.
        """
        return self._interval("forward", *_forward_inputs(dim_sums, start_skew_ms), batch_size)

    def backward_interval_ms(self, dim_sums: ArrayLike, batch_size: int) -> FloatArray:
        """Lower and upper bound of every rank's backward cost (..., W, 2); see `forward_interval_ms`."""
        return self._interval("backward", *_backward_inputs(dim_sums), batch_size)

    def member_costs(
        self, direction: str, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int
    ) -> FloatArray:
        """Cost of every rank in ms as every member predicts it: (E, ..., W)."""
        dims = np.asarray(dim_sums, dtype=np.float64)
        return self._evaluate(direction, dims, np.asarray(start_skew_ms, dtype=np.float64), batch_size)[0]

    def _costs(self, direction: str, dims: FloatArray, skew: FloatArray, batch_size: int) -> FloatArray:
        return self._evaluate(direction, dims, skew, batch_size)[0].mean(axis=0)

    def _interval(self, direction: str, dims: FloatArray, skew: FloatArray, batch_size: int) -> FloatArray:
        calibration = self.networks[direction].calibration
        if calibration is None:
            raise CostModelError(f"this communication cost model has no calibrated intervals; {checkpoint.REMEDY}")
        by_member, context = self._evaluate(direction, dims, skew, batch_size)
        return calibration.interval(by_member.mean(axis=0), member_spread(by_member), calibration.overshoot(context))

    def _evaluate(
        self, direction: str, dims: FloatArray, skew: FloatArray, batch_size: int
    ) -> tuple[FloatArray, FloatArray]:
        """Costs by member (E, ..., W), and the context (..., W, F) of every rank."""
        if batch_size < 1:
            raise CostModelError(f"batch_size {batch_size} must be at least 1")
        if not ((dims >= 0) & (dims <= MAX_DIM_SUM)).all():
            raise CostModelError(f"dim_sums must be widths between 0 and {MAX_DIM_SUM:g}, got {dims}")
        network = self.networks[direction]
        work, context = comm_features(dims, skew, batch_size, direction, self.ranks_per_host)
        if self.architecture == "paper":
            return _paper_costs(network, dims, skew, self.world_sizes[0]), context
        scaled_work = network.normalisation.work(work).reshape(-1, work.shape[-1])
        scaled_context = network.normalisation.context(context).reshape(-1, context.shape[-1])
        chunks = [slice(at, at + _CHUNK_RANKS) for at in range(0, max(len(scaled_work), 1), _CHUNK_RANKS)]
        parts = [
            architectures.comm_costs(np, network.weights, scaled_work[ranks], scaled_context[ranks]) for ranks in chunks
        ]
        costs = np.concatenate(parts, axis=1)  # (E, R)
        return costs.reshape(len(costs), *dims.shape), context

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`."""
        description = {
            "architecture": self.architecture,
            "work_terms": list(COMM_WORK_TERMS),
            "context_features": list(COMM_CONTEXT_FEATURES),
            "batch_size": self.batch_size,
            "world_sizes": list(self.world_sizes),
            "provenance": self.provenance,
        }
        arrays: dict[str, NDArray[Any]] = {}
        for direction, network in self.networks.items():
            arrays |= {f"{direction}.{name}": value for name, value in network.weights.items()}
            arrays |= network.normalisation.arrays(f"{direction}.normalisation.")
            if network.calibration is not None:
                arrays |= network.calibration.arrays(f"{direction}.calibration.")
        checkpoint.save_checkpoint(folder, "CommCostModel", description, arrays)

    @classmethod
    def load(cls, folder: Path | str) -> CommCostModel:
        """Read what `save` wrote; predicts identically.

        Raises:
            CostModelError: missing, truncated or incompatible files; names file and remedy.
        """
        description, arrays = checkpoint.load_checkpoint(folder, "CommCostModel")
        expected = {"work_terms": list(COMM_WORK_TERMS), "context_features": list(COMM_CONTEXT_FEATURES)}
        checkpoint.require_features(description, expected, folder)
        architecture = checkpoint.described(description, "architecture", folder)
        if architecture not in COMM_WEIGHT_NAMES:
            raise CostModelError(f"{folder}: architecture {architecture!r} is unknown; {checkpoint.REMEDY}")
        networks = {}
        for direction in COMM_DIRECTIONS:
            scaling = {f"normalisation.{name}" for name in NORMALISATION_FIELDS}
            scaling |= {f"calibration.{name}" for name in CALIBRATION_FIELDS}
            names = COMM_WEIGHT_NAMES[architecture] | scaling
            checkpoint.require_weights(arrays, {f"{direction}.{name}" for name in names}, folder)
            weights = {name: arrays[f"{direction}.{name}"] for name in COMM_WEIGHT_NAMES[architecture]}
            normalisation = Normalisation.from_arrays(arrays, f"{direction}.normalisation.")
            calibration = Calibration.from_arrays(arrays, f"{direction}.calibration.")
            networks[direction] = CommNetwork(weights, normalisation, calibration)
        return cls(
            architecture=architecture,
            networks=networks,
            batch_size=int(checkpoint.described(description, "batch_size", folder)),
            world_sizes=tuple(checkpoint.described(description, "world_sizes", folder)),
            provenance=checkpoint.described(description, "provenance", folder),
        )


COMM_WEIGHT_NAMES: dict[str, frozenset[str]] = {
    "universal": frozenset(
        {f"{layer}.{part}" for layer in ("in", "mid", "out") for part in ("weight", "bias")} | {"log_price"}
    ),
    "paper": frozenset(
        {f"{layer}.{part}" for layer in range(5) for part in ("weight", "bias")} | {"cost_scale", "cost_mean"}
    ),
}


def ranks_per_host_of(provenance: Mapping[str, Any]) -> int | None:
    """Ranks per host of the hardware that a model remembers: those of a modelled cluster, else all on one host."""
    hardware = provenance.get("hardware")
    topology = hardware.get("topology") if isinstance(hardware, Mapping) else None
    return int(topology["gpus_per_host"]) if topology else None


def paper_comm_features(dim_sums: FloatArray, start_skew_ms: FloatArray) -> FloatArray:
    """What the paper's network sees of a collective: (..., W) twice to (..., 2 W)."""
    return np.concatenate([dim_sums, start_skew_ms], axis=-1)


def _forward_inputs(dim_sums: ArrayLike, start_skew_ms: ArrayLike) -> tuple[FloatArray, FloatArray]:
    dims, skew = np.asarray(dim_sums, dtype=np.float64), np.asarray(start_skew_ms, dtype=np.float64)
    if dims.shape != skew.shape or dims.ndim == 0 or dims.shape[-1] == 0:
        raise CostModelError(f"dim_sums {dims.shape} and start_skew_ms {skew.shape} must both be (..., world_size)")
    if not (skew >= 0).all():  # also refuses NaN
        raise CostModelError("start_skew_ms must be at least 0: how much later than the first rank each one enters")
    return dims, skew


def _backward_inputs(dim_sums: ArrayLike) -> tuple[FloatArray, FloatArray]:
    dims = np.asarray(dim_sums, dtype=np.float64)
    if dims.ndim == 0 or dims.shape[-1] == 0:
        raise CostModelError(f"dim_sums {dims.shape} must be (..., world_size)")
    return dims, np.zeros_like(dims)


def _paper_costs(network: CommNetwork, dims: FloatArray, skew: FloatArray, world_size: int) -> FloatArray:
    """(E, ..., W)."""
    if dims.shape[-1] != world_size:
        raise CostModelError(
            f"the communication model of architecture 'paper' was trained for {world_size} ranks and cannot be asked "
            f"for {dims.shape[-1]}; train with architecture: universal, which takes any world size"
        )
    features = network.normalisation.context(paper_comm_features(dims, skew)).reshape(-1, 2 * world_size)
    costs = architectures.paper_comm_costs(np, network.weights, features)
    return np.maximum(costs, 0.0).reshape(-1, *dims.shape)
