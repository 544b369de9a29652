"""The loops of `comm_features`, compiled: a search looks at thousands of small collectives, one after the other."""

import math

import numpy as np
from numba import njit

from neuroshard_pipeline.arrays import FloatArray, IntArray

_BYTES_PER_NUMBER = 4  # fp32; if the links carry half precision, callers pass half the summed widths
_MIB = float(2**20)
#: Volumes and times below these floors are negligible. The floors keep logarithms finite.
_FLOOR_MIB, _FLOOR_MS = 1e-4, 1e-2


@njit(cache=True)
def features(
    dims: FloatArray, skew: FloatArray, of_all: FloatArray, ranks: IntArray, local: int, is_forward: bool
) -> tuple[FloatArray, FloatArray]:  # pragma: no cover
    """Work (N, K, 12), columns as in `COMM_WORK_TERMS`, and context (N, K, 13), as in `COMM_CONTEXT_FEATURES`.

    Args:
        dims: (N, W) summed widths of each rank's shards, for N collectives.
        skew: (N, W) ms.
        of_all: (3, N) batch sizes, summed widths of all ranks, and mean waits in ms.
        ranks: (N, K), or (N, 0) for all ranks.
        local: number of consecutive ranks that share a host.
        is_forward: whether ranks send what belongs to their own shards.
    """
    world, num = dims.shape[1], ranks.shape[1] or dims.shape[1]
    work, context = np.zeros((len(dims), num, 12)), np.empty((len(dims), num, 13))
    for n in range(len(dims)):
        unit = of_all[0, n] / world * _BYTES_PER_NUMBER / _MIB  # MiB per column and receiving rank
        own, columns, last, early = dims[n] * unit, of_all[1, n] * unit, skew[n].max(), skew[n].min()
        total, hosts = columns * (world - 1), _hosts(own, skew[n], local)
        largest = _directed(own.max() * (world - 1), columns - own.min(), is_forward)
        large, wait = math.log(largest[0] + _FLOOR_MIB), math.log(of_all[2, n] + _FLOOR_MS)
        logs = math.log(world), math.log(of_all[0, n]), large, math.log(total + _FLOOR_MIB), wait
        for k in range(num):
            rank, row = ranks[n, k] if ranks.shape[1] else k, work[n, k]
            row[0], row[1], row[2] = last - skew[n, rank], 1.0, world - 1.0
            row[3], row[4] = _directed(own[rank] * (world - 1), columns - own[rank], is_forward)
            row[5], row[6], row[7] = largest[0], largest[1], total
            remote_wait = _add_remote(row, hosts, rank // local, own[rank], skew[n, rank], is_forward)
            _fill_context(context[n, k], row, skew[n, rank] - early, remote_wait, logs)
    return work, context


@njit(cache=True)
def _hosts(own: FloatArray, skew: FloatArray, local: int) -> FloatArray:  # pragma: no cover
    """Of every host (4, H): peers elsewhere, MiB of its ranks and of its busiest card, ms until all have entered."""
    world = len(own)
    found = np.zeros((4, (world + local - 1) // local))
    for rank in range(world):
        found[1, rank // local] += own[rank]
    for host in range(found.shape[1]):
        ranks = slice(host * local, min((host + 1) * local, world))
        found[0, host] = world - (ranks.stop - ranks.start)
        found[2, host] = max(own[ranks].max() * found[0, host], found[1].sum() - found[1, host])
        found[3, host] = skew[ranks].max()
    return found


@njit(cache=True)
def _add_remote(
    row: FloatArray, hosts: FloatArray, host: int, own: float, skew: float, is_forward: bool
) -> float:  # pragma: no cover
    """Add `REMOTE_TERMS` to a rank's work, and return the ms until the last rank on another host enters."""
    wait = 0.0
    if hosts.shape[1] > 1:
        out, into = own * hosts[0, host], hosts[1].sum() - hosts[1, host]
        row[8], row[11] = hosts[0, host], max(out, into)
        row[9], row[10] = _directed(out, into, is_forward)
        for other in range(hosts.shape[1]):
            if other != host:
                row[8], row[11] = max(row[8], hosts[0, other]), max(row[11], hosts[2, other])
                wait = max(wait, hosts[3, other] - skew)
    return wait


@njit(cache=True)
def _fill_context(
    context: FloatArray, row: FloatArray, late: float, remote_wait: float, logs: tuple[float, ...]
) -> None:  # pragma: no cover
    """Fill a rank's context from its work; `logs` are those of features that all ranks share."""
    context[0], context[1], context[7], context[8], context[11] = logs
    context[2], context[3] = math.log(1.0 + row[8]), math.log(row[11] + _FLOOR_MIB)
    context[4] = math.log(remote_wait + _FLOOR_MS)
    context[5], context[6] = math.log(row[3] + _FLOOR_MIB), math.log(row[4] + _FLOOR_MIB)
    context[9], context[10] = math.log(row[0] + _FLOOR_MS), math.log(late + _FLOOR_MS)
    context[12] = row[0] / (row[0] + late + _FLOOR_MS)


@njit(cache=True)
def _directed(out: float, into: float, is_forward: bool) -> tuple[float, float]:  # pragma: no cover
    """What is sent and received: the rows of own shards go out in the forward direction only."""
    return (out, into) if is_forward else (into, out)
