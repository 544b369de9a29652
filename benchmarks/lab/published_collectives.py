"""Reads published times of collectives (columns as in data/01_raw/published/collectives.csv).

A blank cell means that the publication does not state the value. The reader derives what it can (for example, the time
from a bandwidth, the hosts from the ranks, the collective from both bandwidths). It skips unusable rows and says why.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster_sheets import Chosen, ClusterSheet, GpuSheet, choose_cluster

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.lab.network import COLLECTIVES, Collective
from neuroshard_pipeline.tables.records import Record, read_records

COLUMNS = (
    "gpu", "hosts", "gpus_per_host", "ranks", "interconnect", "collective", "bytes", "time_us", "algbw_GBs",
    "busbw_GBs", "software", "source", "note",
)  # fmt: skip

_BYTES_PER_US = 1e3  # of 1 GB/s
#: Ratio of the bus bandwidth to bytes per time, as nccl-tests defines it.
_BUS_FACTOR: dict[Collective, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}
_SPELLINGS: dict[str, Collective] = {name.replace("_", ""): name for name in COLLECTIVES}
_ONE_PROCESS = re.compile(r"single[ -]process|one process|same pid", re.IGNORECASE)
_NOISY = re.compile(r"noise", re.IGNORECASE)
_FAULTY = re.compile(r"do not calibrate", re.IGNORECASE)
_NOISY_BELOW_BYTES = 2**24  # of smaller buffers, a large part of the time is noise of the host


class _UnusableError(Exception):
    """A row that cannot be modelled; the message says why."""


@dataclass(frozen=True)
class MeasuredCollective:
    """One measured collective.

    Attributes:
        where: file and line.
        source: column `source`.
        publisher: the repository or thread of the source.
        gpu: name of the GPU, as stated.
        cluster: the modelled cluster that it is compared with.
        collective: which one.
        size_bytes: whole buffer, as `network.collective_us` defines it.
        ranks: number of ranks.
        hosts: number of hosts, or of NVLink domains if a domain spans hosts.
        time_us: measured time.
        one_process: whether one process drove all GPUs of a host and launched their kernels one after another.
        noisy: whether the buffer is below 16 MiB and the publication says that times include noise of the host.
    """

    where: str
    source: str
    publisher: str
    gpu: str
    cluster: Chosen
    collective: Collective
    size_bytes: float
    ranks: int
    hosts: int
    time_us: float
    one_process: bool
    noisy: bool


def read_published_collectives(
    path: Path, gpus: Mapping[str, GpuSheet], clusters: Mapping[str, ClusterSheet]
) -> tuple[list[MeasuredCollective], list[str]]:
    """All rows that can be modelled, and for every other row the reason why not.

    Args:
        path: CSV file with `COLUMNS`; further columns are ignored.
        gpus: GPU sheets.
        clusters: cluster sheets.

    Raises:
        TableFileError: the file cannot be read, a column is missing, a number is invalid or negative, or a row has more
            hosts than ranks.
    """
    records = read_records(path)
    missing = [column for column in COLUMNS if column not in records[0].values]
    if missing:
        raise TableFileError(f"{path}: column {missing[0]!r} is missing; the columns are {', '.join(COLUMNS)}")
    rows, skipped = [], []
    for record in records:
        try:
            rows.append(_measured(record, gpus, clusters))
        except _UnusableError as reason:
            skipped.append(str(reason))
    return rows, skipped


def _measured(record: Record, gpus: Mapping[str, GpuSheet], clusters: Mapping[str, ClusterSheet]) -> MeasuredCollective:
    note = " ".join(_text(record, column) for column in ("software", "note"))
    if _FAULTY.search(note):
        raise _UnusableError("the publication reports the time as a fault")
    gpu, interconnect = _text(record, "gpu"), _text(record, "interconnect")
    ranks, hosts, gpus_per_host = _layout(record)
    cluster = choose_cluster(gpu, interconnect, gpus_per_host, gpus, clusters)
    if cluster is None:
        raise _UnusableError(f"no preset for GPU {gpu!r}" if gpu else "GPU not stated")
    domain = gpus[clusters[cluster.name].gpu].domain or gpus_per_host
    hosts = hosts if hosts is not None and domain <= gpus_per_host else -(-ranks // domain)
    collective = _collective(record, ranks)
    size, source = _positive(record, "bytes"), _text(record, "source")
    if size is None:
        raise _UnusableError("bytes not stated")
    return MeasuredCollective(
        where=f"{record.path.name}: {record.where}",
        source=source,
        publisher=publisher_of(source),
        gpu=gpu,
        cluster=cluster,
        collective=collective,
        size_bytes=size,
        ranks=ranks,
        hosts=hosts,
        time_us=_time_us(record, collective, size, ranks),
        one_process=bool(_ONE_PROCESS.search(note)),
        noisy=bool(_NOISY.search(note)) and size < _NOISY_BELOW_BYTES,
    )


def publisher_of(text: str) -> str:
    """The repository or thread of a source: what stands before the path in it."""
    return re.split(r":|#(?=\D)| \(", text, maxsplit=1)[0]


def collective_named(text: str) -> Collective | None:
    """The collective whose name occurs in a text, in any spelling: `alltoall`, `all-to-all`, `All2All`."""
    letters = re.sub(r"[^a-z]", "", text.lower().replace("2", "to"))
    return next((name for spelling, name in _SPELLINGS.items() if spelling in letters), None)


def bus_factor(collective: Collective, ranks: int) -> float:
    """Ratio of the bus bandwidth to bytes per time, as nccl-tests defines it."""
    return _BUS_FACTOR[collective](ranks)


def _layout(record: Record) -> tuple[int, int | None, int]:
    """Ranks, hosts if stated, and GPUs per host."""
    ranks, hosts, per_host = (_count(record, column) for column in ("ranks", "hosts", "gpus_per_host"))
    if ranks is None:
        if hosts is None or per_host is None:
            raise _UnusableError("number of ranks not stated")
        ranks = hosts * per_host
    if per_host is None:
        per_host = -(-ranks // hosts) if hosts else ranks
    if hosts is not None and hosts > ranks:
        raise record.problem("hosts", f"exceeds the number of ranks, {ranks}")
    return ranks, hosts, per_host


def _collective(record: Record, ranks: int) -> Collective:
    text = _text(record, "collective")
    if named := collective_named(text):
        return named
    if text:
        raise _UnusableError(f"collective {text!r} is not modelled")
    algorithm, bus = _positive(record, "algbw_GBs"), _positive(record, "busbw_GBs")
    if ranks > 2 and algorithm and bus and abs(bus / algorithm / bus_factor("all_reduce", ranks) - 1) < 0.02:
        return "all_reduce"
    raise _UnusableError("collective not stated")


def _time_us(record: Record, collective: Collective, size: float, ranks: int) -> float:
    if (time_us := _positive(record, "time_us")) is not None:
        return time_us
    if (bus := _positive(record, "busbw_GBs")) is not None and ranks > 1:
        return size * bus_factor(collective, ranks) / (bus * _BYTES_PER_US)
    if (algorithm := _positive(record, "algbw_GBs")) is not None:
        return size / (algorithm * _BYTES_PER_US)
    raise _UnusableError("neither time nor bandwidth stated")


def _count(record: Record, column: str) -> int | None:
    value = _positive(record, column)
    return None if value is None else int(value)


def _positive(record: Record, column: str) -> float | None:
    """The number of a cell; None if the cell is blank or 0 (a bandwidth that was rounded to 0)."""
    if record.is_empty(column):
        return None
    value = record.number(column)
    if value < 0:
        raise record.problem(column, "must be above 0, or blank if it is not stated")
    return value or None


def _text(record: Record, column: str) -> str:
    value = record.values.get(column)
    return "" if value is None else str(value).strip()
