"""Reads logs of nccl-tests: the out-of-place times of its tables, and the GPUs and hosts of its device list."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster_sheets import Chosen, ClusterSheet, GpuSheet, choose_cluster
from published_collectives import MeasuredCollective, bus_factor, collective_named

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.lab.network import Collective
from neuroshard_pipeline.tables.records import read_text

_PREFIX = re.compile(r"^\s*\[?\d+\]?:\s?")  # the rank that mpirun or srun writes before every line
_STARTING = re.compile(r"# Collective test starting: (\w+?)(?:_perf)?\s*$")
_NEW_TEST = re.compile(r"#\s*nThread\s+\d+")
_DEVICE = re.compile(r"#\s*Rank\s+(\d+)\s.*?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+?)\s*$")
#: size, count, type, reduction (absent or `none` if there is none), root (newer versions), time, bandwidths, wrong
_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(?:([a-z]\w*)\s+)?(?:(-?\d+)\s+)?([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)(?:\s|$)"
)
_TOLERANCE = 0.03  # relative error of the ratio of bus to algorithm bandwidth; logs round both to two decimals
_ROUNDING = 1e-2  # largest error of sums of half-precision numbers
_LEAST_BANDWIDTH = 0.5  # GB/s of algorithm bandwidth from which two decimals determine the ratio of both bandwidths


@dataclass
class _Test:
    """One test of a log while it is read."""

    name: str = ""
    devices: dict[int, tuple[str, str, str]] = field(default_factory=dict)  # rank -> host, pid, GPU
    rows: list[tuple[int, str, float, float, float]] = field(default_factory=list)  # line, reduction, size, us, bus/alg


def read_nccl_log(
    path: Path,
    gpus: Mapping[str, GpuSheet],
    clusters: Mapping[str, ClusterSheet],
    cluster: str | None = None,
    collective: Collective | None = None,
) -> list[MeasuredCollective]:
    """All measured collectives of a log.

    Args:
        path: what `all_reduce_perf`, `alltoall_perf`, `all_gather_perf` or `reduce_scatter_perf` printed; one log may
            hold several tests.
        gpus: GPU sheets.
        clusters: cluster sheets.
        cluster: name of the cluster sheet, None for the default one of the GPU.
        collective: which one the tests measured; None if the log, its file name or its bandwidths tell.

    Raises:
        TableFileError: the file cannot be read or is no such log, or its GPU or its collective is not known.
    """
    found = []
    for test in _tests(read_text(path) if path.exists() else _missing(path)):
        found += _measured(path, test, gpus, clusters, cluster, collective)
    if not found:
        raise TableFileError(
            f"{path}: no line with size, count, type, time and bandwidths; give the output of nccl-tests, such as "
            "all_reduce_perf -b 8 -e 8G -f 2"
        )
    return found


def _missing(path: Path) -> str:
    raise TableFileError(f"{path}: no such file; give the output of nccl-tests")


def _tests(text: str) -> Iterator[_Test]:
    test = _Test()
    for number, raw in enumerate(text.splitlines(), 1):
        line = _PREFIX.sub("", raw)
        starting = _STARTING.search(line)
        if starting or (_NEW_TEST.search(line) and test.rows):
            if test.rows:
                yield test
            test = _Test(starting[1] if starting else "")
        elif device := _DEVICE.search(line):
            rank, pid, host, gpu = device.groups()
            test.devices[int(rank)] = (host, pid, gpu)
        elif row := _ROW.match(line):
            size, _, _, reduction, _, us, algorithm, bus, wrong = row.groups()
            if float(us) > 0 and int(size) > 0 and _is_right(wrong):
                ratio = float(bus) / float(algorithm) if float(algorithm) >= _LEAST_BANDWIDTH else 0.0
                test.rows.append((number, reduction or "none", float(size), float(us), ratio))
    if test.rows:
        yield test


def _is_right(wrong: str) -> bool:
    """Whether the column `#wrong` is 0 or not available, or states an error of rounding, as older versions do."""
    return wrong in ("0", "N/A") or bool(re.fullmatch(r"\d[\d.]*e[-+]\d+", wrong) and float(wrong) < _ROUNDING)


def _measured(
    path: Path,
    test: _Test,
    gpus: Mapping[str, GpuSheet],
    clusters: Mapping[str, ClusterSheet],
    cluster: str | None,
    collective: Collective | None,
) -> list[MeasuredCollective]:
    if not test.devices:
        raise TableFileError(
            f"{path}: no line '# Rank 0 ... on <host> device ...'; give the whole output of nccl-tests"
        )
    hosts = {host for host, _, _ in test.devices.values()}
    ranks, gpu = len(test.devices), next(iter(test.devices.values()))[2]
    per_host = -(-ranks // len(hosts))
    chosen = _chosen(path, gpu, per_host, gpus, clusters, cluster)
    domain = gpus[clusters[chosen.name].gpu].domain
    processes = {(host, pid) for host, pid, _ in test.devices.values()}
    kind = collective or _collective(path, test, ranks)
    return [
        MeasuredCollective(
            where=f"{path.name}: line {line}",
            source=path.name,
            publisher=path.name,
            gpu=gpu,
            cluster=chosen,
            collective=kind,
            size_bytes=size,
            ranks=ranks,
            hosts=-(-ranks // domain) if domain else len(hosts),
            time_us=us,
            one_process=ranks > 1 and len(processes) == len(hosts) < ranks,
            noisy=False,
        )
        for line, _, size, us, _ in test.rows
    ]


def _chosen(
    path: Path,
    gpu: str,
    gpus_per_host: int,
    gpus: Mapping[str, GpuSheet],
    clusters: Mapping[str, ClusterSheet],
    cluster: str | None,
) -> Chosen:
    if cluster is not None:
        return Chosen(cluster, clusters[cluster].card_gb_per_s, "")
    chosen = choose_cluster(gpu, "", gpus_per_host, gpus, clusters)
    if chosen is None:
        raise TableFileError(f"{path}: GPU {gpu!r} is unknown; name the nearest cluster: CLUSTER={'|'.join(clusters)}")
    return chosen


def _collective(path: Path, test: _Test, ranks: int) -> Collective:
    """The collective that the log or its file name states, else the reduction with the log's ratio of bandwidths."""
    for text in (test.name, path.name):
        if named := collective_named(text):
            return named
    ratios = [ratio for _, _, _, _, ratio in test.rows if ratio > 0]
    if test.rows[0][1] != "none" and ranks > 2 and ratios:
        for kind in ("all_reduce", "reduce_scatter"):
            if abs(ratios[-1] / bus_factor(kind, ranks) - 1) < _TOLERANCE:
                return kind
    raise TableFileError(
        f"{path}: the log does not say which collective it measured; name it: "
        "COLLECTIVE=all_reduce|all_gather|reduce_scatter|alltoall"
    )
