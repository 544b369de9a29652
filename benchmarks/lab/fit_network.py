"""Fits modelled clusters to measured collectives.

A modelled cluster stands for all measured clusters that match its data sheet (`ClusterSheet`). It has 6 numbers of its
hosts, which all data sheets with the same GPU share, and 7 of its network. Each of the 6 is a typical value of all
hosts times a factor of the GPU. Each of the 7 is a typical value of this kind of network times a factor of the data
sheet. All typical values and factors are unknowns. Typical values start at those of `NetworkFitParams`, factors at
1. A penalty grows with their distance from the start, in units of the spread of the number between clusters (half of
this spread for typical values):

    minimise sum over rows rho(weight * log(predicted / measured) / 0.1)
           + sum over unknowns rho(log(unknown / start) / spread)

A row is one measured collective; collectives below 1 MiB have the weight 1/2, all others 1. rho is SciPy's `soft_l1`:
about the square of small residuals, and linear in large ones. With the penalty, a few rows suffice for a cluster. The
numbers of a network without any row are its typical shares and times, with the bandwidth of its data sheet. The same
holds for the hosts of a GPU without any row.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from cluster_sheets import ClusterSheet, FabricNumbers, HostNumbers, NetworkSheets
from published_collectives import MeasuredCollective
from scipy.optimize import least_squares

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.network import (
    COLLECTIVES,
    Collective,
    FabricParams,
    HostParams,
    NetworkParams,
    collective_us,
)
from neuroshard_pipeline.parameters import Parameters

_ERROR_SCALE = 0.1  # relative errors above this count linearly instead of squared
_SMALL_BYTES, _SMALL_WEIGHT = 2**20, 0.5  # smaller collectives scatter more and matter less
_TYPICAL_SPREAD = 0.5  # typical values move less than those of a cluster, because few clusters determine them
_FOLDS = 5  # every fifth size is left out in turn
_STEP = 1e-4  # of a logarithm, for derivatives


@dataclass(frozen=True)
class FittedNetworks:
    """Fitted numbers as logarithms, by GPU sheet and by cluster sheet; sheets without rows have the typical ones."""

    sheets: NetworkSheets
    hosts: dict[str, FloatArray]
    fabrics: dict[str, FloatArray]

    def params(self, name: str) -> NetworkParams:
        """The modelled cluster of a sheet."""
        cluster = self.sheets.clusters[name]
        numbers = np.concatenate([self.hosts[cluster.gpu], self.fabrics[name]])
        return _params(numbers, self.sheets, name, cluster.card_gb_per_s)


class _Columns(NamedTuple):
    """Measured collectives as arrays, (R,), and the indices of the rows of each kind of collective."""

    size_bytes: FloatArray
    ranks: FloatArray
    hosts: FloatArray
    time_us: FloatArray
    one_process: FloatArray
    places: dict[Collective, IntArray]

    @staticmethod
    def of(rows: Sequence[MeasuredCollective]) -> "_Columns":
        """Arrays of rows."""
        names = ("size_bytes", "ranks", "hosts", "time_us", "one_process")
        size, ranks, hosts, us, one = (
            np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in names
        )
        kinds = np.array([row.collective for row in rows])
        return _Columns(size, ranks, hosts, us, one, {name: np.flatnonzero(kinds == name) for name in COLLECTIVES})

    def predicted_us(self, params: NetworkParams, one_process_us: float) -> FloatArray:
        us = np.zeros(len(self.ranks))
        for name, at in self.places.items():
            if len(at):
                us[at] = collective_us(name, self.size_bytes[at], self.ranks[at], self.hosts[at], params)
        return np.maximum(us, self.one_process * one_process_us * self.ranks / self.hosts)


@dataclass(frozen=True)
class _Group:
    """Rows of one cluster sheet and one stated bandwidth."""

    cluster: str
    card_gb_per_s: float
    columns: _Columns


def predicted_us(rows: Sequence[MeasuredCollective], params: NetworkParams, one_process_us: float) -> FloatArray:
    """Modelled times of measured collectives of one cluster."""
    return _Columns.of(rows).predicted_us(params, one_process_us)


def with_card(params: NetworkParams, card_gb_per_s: float, sheet: ClusterSheet) -> NetworkParams:
    """The modelled cluster of `sheet` with cards of another nominal bandwidth, of which they reach the same share."""
    card = params.fabric.card_gb_per_s * card_gb_per_s / sheet.card_gb_per_s
    return params.model_copy(update={"fabric": params.fabric.model_copy(update={"card_gb_per_s": card})})


def fit_networks(rows: Sequence[MeasuredCollective], sheets: NetworkSheets) -> FittedNetworks:
    """All clusters, fitted together.

    Args:
        rows: measured collectives; noisy ones and those of a single rank are left out.
        sheets: data sheets.
    """
    groups, fit = _groups(rows), sheets.fit
    spreads = np.exp(_logs(fit.host_spread)), np.exp(_logs(fit.fabric_spread))
    typical = {"host": (fit.host, spreads[0]), "rdma": (fit.rdma, spreads[1]), "cloud": (fit.cloud, spreads[1])}
    blocks = {name: (_logs(numbers), _TYPICAL_SPREAD * spread) for name, (numbers, spread) in typical.items()}
    for group in groups:
        blocks[sheets.clusters[group.cluster].gpu] = np.zeros(_HOST), spreads[0]
        blocks[group.cluster] = np.zeros(_FABRIC), spreads[1]
    ends = np.cumsum([len(start) for start, _ in blocks.values()])
    places = {name: np.arange(end - len(blocks[name][0]), end) for name, end in zip(blocks, ends, strict=True)}
    start, scale = (np.concatenate(part) for part in zip(*blocks.values(), strict=True))

    def used(cluster: ClusterSheet, name: str) -> IntArray:
        """Indices, among all unknowns, of the typical values of a cluster and of its own factors, (13, 2)."""
        shared, own = ("host", cluster.kind), (cluster.gpu, name)
        return np.stack([np.concatenate([places[block] for block in pair]) for pair in (shared, own)], axis=1)

    wanted = [(group, used(sheets.clusters[group.cluster], group.cluster)) for group in groups]
    found = _minimise(start, scale, wanted, sheets)
    own = {name: found[at] for name, at in places.items()}
    return FittedNetworks(
        sheets,
        {name: own["host"] + own.get(name, 0.0) for name in sheets.gpus},
        {name: own[cluster.kind] + own.get(name, 0.0) for name, cluster in sheets.clusters.items()},
    )


def fit_cluster(
    rows: Sequence[MeasuredCollective], name: str, start: NetworkParams, sheets: NetworkSheets
) -> NetworkParams:
    """One cluster, fitted to its own measurements.

    Args:
        rows: measured collectives of this cluster; noisy ones and those of a single rank are left out.
        name: its cluster sheet.
        start: where the fit starts, usually the preset of the sheet. The fit is penalised for leaving it, so that
            numbers that the rows do not determine keep its values.
        sheets: data sheets.

    Raises:
        MeasurementError: no row is left.
    """
    card = sheets.clusters[name].card_gb_per_s
    used = tuple(row for row in rows if not row.noisy and row.ranks > 1)
    if not used:
        raise MeasurementError(
            f"{name}: none of {len(rows)} measurements has several ranks and is free of noise; give a log of "
            "nccl-tests on at least two GPUs"
        )
    numbers = _numbers(start, sheets, name)
    places = np.arange(len(numbers))[:, None]
    spread = np.exp(np.concatenate([_logs(sheets.fit.host_spread), _logs(sheets.fit.fabric_spread)]))
    found = _minimise(numbers, spread, [(_Group(name, card, _Columns.of(used)), places)], sheets)
    return _params(found, sheets, name, card)


def from_other_sizes(
    rows: Sequence[MeasuredCollective], name: str, start: NetworkParams, sheets: NetworkSheets
) -> tuple[list[MeasuredCollective], FloatArray]:
    """Prediction of every row by a fit of its cluster to the other sizes; every fifth size is left out in turn.

    Args:
        rows: measured collectives of one cluster; those of a single rank are left out.
        name: its cluster sheet.
        start: where the fits start, and what they are penalised for leaving.
        sheets: data sheets.

    Returns:
        The rows for which other sizes exist, and their predicted times.
    """
    rows = [row for row in rows if row.ranks > 1]
    fold = np.array([round(np.log2(row.size_bytes)) % _FOLDS for row in rows])
    tested: list[MeasuredCollective] = []
    times = [np.zeros(0)]
    for at in range(_FOLDS):
        fitted = [row for row, of in zip(rows, fold, strict=True) if of != at and not row.noisy]
        left = [row for row, of in zip(rows, fold, strict=True) if of == at]
        if fitted and left:
            params = fit_cluster(fitted, name, start, sheets)
            tested += left
            times.append(predicted_us(left, params, sheets.fit.one_process_us))
    return tested, np.concatenate(times)


def _minimise(
    start: FloatArray, scale: FloatArray, groups: Sequence[tuple[_Group, IntArray]], sheets: NetworkSheets
) -> FloatArray:
    """The unknowns that minimise the sum at the top of this file.

    Unknowns and numbers are logarithms. A number of a group is the sum of the unknowns at its indices.
    """

    def log_errors(group: _Group, numbers: FloatArray) -> FloatArray:
        params = _params(numbers, sheets, group.cluster, group.card_gb_per_s)
        us = group.columns.predicted_us(params, sheets.fit.one_process_us)
        weights = np.where(group.columns.size_bytes < _SMALL_BYTES, _SMALL_WEIGHT, 1.0) / _ERROR_SCALE
        return np.asarray(weights * np.log(us / group.columns.time_us))

    def residuals(unknowns: FloatArray) -> FloatArray:
        errors = [log_errors(group, unknowns[places].sum(axis=1)) for group, places in groups]
        return np.concatenate([*errors, (unknowns - start) / scale])

    def jacobian(unknowns: FloatArray) -> FloatArray:
        blocks = []
        for group, places in groups:
            numbers = unknowns[places].sum(axis=1)
            steps = _STEP * np.eye(len(numbers))
            slopes = [
                (log_errors(group, numbers + step) - log_errors(group, numbers - step)) / (2 * _STEP) for step in steps
            ]
            block = np.zeros((len(slopes[0]), len(unknowns)))
            for place in places.T:
                block[:, place] = np.stack(slopes, axis=1)
            blocks.append(block)
        return np.concatenate([*blocks, np.diag(1 / scale)])

    return np.asarray(least_squares(residuals, start, jacobian, loss="soft_l1", ftol=1e-4, max_nfev=40).x)


def _groups(rows: Sequence[MeasuredCollective]) -> list[_Group]:
    by_cluster = defaultdict(list)
    for row in rows:
        if not row.noisy and row.ranks > 1:
            by_cluster[row.cluster.name, row.cluster.card_gb_per_s].append(row)
    return [_Group(name, card, _Columns.of(members)) for (name, card), members in by_cluster.items()]


_HOST, _FABRIC = len(HostNumbers.model_fields), len(FabricNumbers.model_fields)


def _logs(numbers: Parameters) -> FloatArray:
    return np.log(np.array(list(numbers.model_dump().values()), dtype=np.float64))


def _params(numbers: FloatArray, sheets: NetworkSheets, name: str, card_gb_per_s: float) -> NetworkParams:
    cluster = sheets.clusters[name]
    gpu = sheets.gpus[cluster.gpu]
    launch, rank, link, switch, fill, low = np.exp(numbers[:_HOST]).tolist()
    hop, peer, card, alltoall, tree, ring, fabric_low = np.exp(numbers[_HOST:]).tolist()
    return NetworkParams(
        gpus_per_host=cluster.gpus_per_host,
        host=HostParams(
            launch_us=launch,
            rank_us=rank,
            link_gb_per_s=link * gpu.link_gb_per_s,
            switch_reduction=max(switch, 1.0) if gpu.switch_reduction else 1.0,
            fill_us=fill,
            low_latency_share=min(low, 1.0),
        ),
        fabric=FabricParams(
            hop_us=hop,
            peer_us=peer,
            card_gb_per_s=card * card_gb_per_s,
            alltoall_share=min(alltoall, 1.0),
            tree_fill_us=tree,
            ring_fill_us=ring,
            low_latency_share=min(fabric_low, 1.0),
            trees=cluster.trees,
        ),
    )


def _numbers(params: NetworkParams, sheets: NetworkSheets, name: str) -> FloatArray:
    """The inverse of `_params`."""
    cluster = sheets.clusters[name]
    host = params.host.model_dump()
    fabric = {key: value for key, value in params.fabric.model_dump().items() if key != "trees"}
    host["link_gb_per_s"] /= sheets.gpus[cluster.gpu].link_gb_per_s
    fabric["card_gb_per_s"] /= cluster.card_gb_per_s
    return np.log(np.maximum(np.array([*host.values(), *fabric.values()]), 1e-6))
