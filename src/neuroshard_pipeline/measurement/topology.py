"""All-to-all costs from an explicit alpha-beta model of a cluster: modelled, not measured.

Shape letters: N samples of one world size, W ranks.

Ranks fill hosts in order, `gpus_per_host` on each. A message crosses one of two levels, inside a host or across
hosts; the two levels work at the same time. On a level with latency alpha, bandwidth B and half-speed size h:

    busy(m)     = (m + h) / B                          a message of m > 0 bytes runs at B * m / (m + h)
    out[i]      = sum of busy over the messages that i sends on the level; in[j] = the same for those that j receives
    done[i, j]  = max(start[i], start[j]) + alpha + max(out[i], in[j])
    cost[r]     = launch + max(done[r, j], done[j, r] over every j that r exchanges bytes with) - start[r]

A rank has one full-duplex port per level. Its messages share the port's bandwidth evenly, so that each of them may be
the last to finish. A message starts when both of its ranks have started; the model assumes that neither rank sends
another message before that time. Data that a rank keeps for itself stay on the device and cost nothing.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd
from pydantic import Field

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import CommSample

_BYTES_PER_FLOAT = 4
_MS_PER_US = 1e-3
_BYTES_PER_MS_AT_1_GB_PER_S = 1e6
#: Number of messages computed at the same time, which limits an array to 32 MiB.
_MESSAGES_AT_ONCE = 2**22


class TopologyParams(Parameters):
    """The cluster of the communication backend `topology`; bandwidths are per GPU and direction.

    Attributes:
        gpus_per_host: number of ranks on one host.
        launch_us: fixed time of every collective before data move, in microseconds.
        intra_latency_us: alpha inside a host, in microseconds.
        intra_gb_per_s: B inside a host, in 1e9 bytes per second.
        intra_half_speed_bytes: h inside a host; a message of this size runs at half of B.
        inter_latency_us: alpha across hosts, in microseconds.
        inter_gb_per_s: B across hosts, in 1e9 bytes per second, for the network card of one GPU.
        inter_half_speed_bytes: h across hosts.
    """

    gpus_per_host: int = Field(ge=1, le=1024)
    launch_us: float = Field(ge=0)
    intra_latency_us: float = Field(ge=0)
    intra_gb_per_s: float = Field(gt=0)
    intra_half_speed_bytes: float = Field(ge=0)
    inter_latency_us: float = Field(ge=0)
    inter_gb_per_s: float = Field(gt=0)
    inter_half_speed_bytes: float = Field(ge=0)


def require_topology(params: TopologyParams | None) -> TopologyParams:
    """The cluster of the backend `topology`.

    Raises:
        MeasurementError: no cluster was given.
    """
    if params is None:
        raise MeasurementError("backend topology needs the parameters of a cluster; set topology, or use gloo or nccl")
    return params


def topology_costs(samples: Sequence[CommSample], params: TopologyParams) -> pd.DataFrame:
    """Modelled costs of every rank, in the same columns as measured costs.

    Args:
        samples: samples of any world sizes.
        params: the cluster.

    Returns:
        `sample_id, rank, forward_ms, backward_ms, spread_ms, error` in the order of samples and ranks; the last two
        are null.
    """
    by_world = defaultdict(list)
    for index, sample in enumerate(samples):
        by_world[sample.world_size].append(index)
    frames = []
    for world_size, indices in by_world.items():
        step = max(1, _MESSAGES_AT_ONCE // world_size**2)
        for start in range(0, len(indices), step):
            chosen = indices[start : start + step]
            frames.append(
                _frame([samples[index] for index in chosen], params).assign(order=np.repeat(chosen, world_size))
            )
    if not frames:
        return _frame([], params)
    return pd.concat(frames).sort_values("order", kind="stable").drop(columns="order").reset_index(drop=True)


def _frame(samples: Sequence[CommSample], params: TopologyParams) -> pd.DataFrame:
    """Costs of samples that have the same world size."""
    world_size = samples[0].world_size if samples else 0
    shape = (len(samples), world_size)
    dim_sums = np.array([sample.dim_sums for sample in samples], dtype=np.float64).reshape(shape)
    skew_ms = np.array([sample.start_skew_ms for sample in samples], dtype=np.float64).reshape(shape)
    batch_sizes = np.array([sample.batch_size for sample in samples], dtype=np.int64)
    message_bytes = _message_bytes(dim_sums, batch_sizes)
    forward_ms = rank_costs_ms(message_bytes, skew_ms, params)
    backward_ms = rank_costs_ms(message_bytes.transpose(0, 2, 1), np.zeros(shape), params)
    return pd.DataFrame(
        {
            "sample_id": np.repeat([sample.sample_id for sample in samples], world_size).astype(object),
            "rank": np.tile(np.arange(world_size), len(samples)),
            "forward_ms": forward_ms.reshape(-1),
            "backward_ms": backward_ms.reshape(-1),
            "spread_ms": np.full(forward_ms.size, np.nan),
            "error": np.full(forward_ms.size, None, dtype=object),
        }
    )


def _message_bytes(dim_sums: np.ndarray, batch_sizes: np.ndarray) -> np.ndarray:
    """Bytes that rank i sends to rank j in the forward all-to-all, (N, W, W): i's columns for j's part of the batch."""
    world_size = dim_sums.shape[1]
    share, rest = np.divmod(batch_sizes, max(world_size, 1))
    split = share[:, None] + (np.arange(world_size) < rest[:, None])  # (N, W)
    return _BYTES_PER_FLOAT * dim_sums[:, :, None] * split[:, None, :]


def rank_costs_ms(message_bytes: np.ndarray, start_ms: np.ndarray, params: TopologyParams) -> np.ndarray:
    """Cost of every rank from its own start, (N, W), in ms; the formula is at the top of this file.

    Args:
        message_bytes: bytes that rank i sends to rank j, (N, W, W); the diagonal is ignored.
        start_ms: time at which each rank enters the collective, (N, W).
        params: the cluster.
    """
    world_size = start_ms.shape[1]
    host = np.arange(world_size) // params.gpus_per_host
    inside = host[:, None] == host[None, :]
    other = ~np.eye(world_size, dtype=bool)
    both_there = np.maximum(start_ms[:, :, None], start_ms[:, None, :])  # (N, W, W)
    done = np.full(message_bytes.shape, -np.inf)
    for level, latency_us, gb_per_s, half_bytes in (
        (inside & other, params.intra_latency_us, params.intra_gb_per_s, params.intra_half_speed_bytes),
        (~inside, params.inter_latency_us, params.inter_gb_per_s, params.inter_half_speed_bytes),
    ):
        used = level & (message_bytes > 0)
        busy_ms = np.where(used, message_bytes + half_bytes, 0.0) / (gb_per_s * _BYTES_PER_MS_AT_1_GB_PER_S)
        port_ms = np.maximum(busy_ms.sum(axis=2)[:, :, None], busy_ms.sum(axis=1)[:, None, :])
        done = np.where(used, both_there + latency_us * _MS_PER_US + port_ms, done)
    last_ms = np.maximum(done.max(axis=2, initial=-np.inf), done.max(axis=1, initial=-np.inf))
    return params.launch_us * _MS_PER_US + np.maximum(last_ms, start_ms) - start_ms
