"""The collectives half of benchmarks/lab/check_gpu_lab.py: the modelled network beside published collectives.

Every row is predicted as if its cluster had never been seen and, if its cluster has rows with other sizes, a second
time after a fit to these. For the first prediction, rows of data/01_raw/published are predicted by a fit that leaves
out all rows of their publisher, other rows by the shipped preset. For the second, every fifth size is left out in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from cluster_sheets import network_sheets
from fit_network import fit_networks, from_other_sizes, predicted_us, with_card
from gpu_lab_points import LEFT_OUT, PREDICTED, Aim, Check, Point
from published_collectives import MeasuredCollective, read_published_collectives

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.network_presets import network_preset

PUBLISHED = Path(__file__).resolve().parents[2] / "data" / "01_raw" / "published"
OURS = (PUBLISHED / "collectives.csv", PUBLISHED / "collectives_further.csv")
OTHER_SIZES = "other sizes"  # the cluster was fitted to its rows of other sizes

AIM_SEEN = Aim("collectives from 1 MB on, cluster fitted on other sizes", {"median": 0.12})
AIM_UNSEEN = Aim("collectives from 1 MB on, cluster never seen", {"median": 0.25})
AIM_FLOOR = Aim("floors below 64 KiB, cluster never seen, host noise excluded", {"median factor": 1.5})

_SIZES = ((2**16, "below 64 KiB"), (2**20, "64 KiB to 1 MiB"), (float("inf"), "from 1 MiB"))
_LARGE_BYTES = 1e6

Prediction = Callable[[Sequence[MeasuredCollective]], FloatArray]


def check_collectives(path: Path) -> Check:
    """Predict every row of a file with the columns of data/01_raw/published/collectives.csv."""
    sheets = network_sheets()
    rows, skipped = read_published_collectives(path, sheets.gpus, sheets.clusters)
    ours = [row for file in OURS for row in read_published_collectives(file, sheets.gpus, sheets.clusters)[0]]
    sources = {row.source for row in ours}

    @cache
    def without(publisher: str) -> Callable[[str], NetworkParams]:
        return fit_networks([row for row in ours if row.publisher != publisher], sheets).params

    points: list[Point] = []
    for (_, name, card), members in _grouped(rows).items():
        for known in (True, False):
            of_cluster = [row for row in members if (row.source in sources) == known]
            if not of_cluster:
                continue
            preset = without(of_cluster[0].publisher)(name) if known else network_preset(name)
            start = with_card(preset, card, sheets.clusters[name])
            unseen = predicted_us(of_cluster, start, sheets.fit.one_process_us)
            points += _points(of_cluster, unseen, LEFT_OUT if known else PREDICTED)
            points += _points(*from_other_sizes(of_cluster, name, start, sheets), OTHER_SIZES)
    assumed = [row.cluster.assumed for row in rows if row.cluster.assumed and row.hosts > 1]
    return Check(f"Collectives: {path}", points, [AIM_SEEN, AIM_UNSEEN, AIM_FLOOR], skipped, assumed)


def _grouped(rows: Iterable[MeasuredCollective]) -> dict[tuple[str, str, float], list[MeasuredCollective]]:
    """The rows by publisher, cluster and bandwidth of the network card."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.publisher, row.cluster.name, row.cluster.card_gb_per_s].append(row)
    return groups


def _points(rows: Sequence[MeasuredCollective], times_us: FloatArray, how: str) -> list[Point]:
    return [
        Point(
            source=row.publisher,
            device=f"{row.cluster.name} {row.collective}",
            size=next(name for limit, name in _SIZES if row.size_bytes < limit) + (", host noise" if row.noisy else ""),
            published_us=row.time_us,
            predicted_us=float(us),
            how=how,
            aim=_aim(row, how),
            what=f"{row.collective} of {row.ranks} ranks on {row.hosts} hosts, {row.cluster.name}, {row.where} ({how})",
        )
        for row, us in zip(rows, times_us, strict=True)
    ]


def _aim(row: MeasuredCollective, how: str) -> str | None:
    if row.size_bytes >= _LARGE_BYTES:
        return (AIM_SEEN if how == OTHER_SIZES else AIM_UNSEEN).name
    is_floor = row.size_bytes < _SIZES[0][0] and not row.noisy and how != OTHER_SIZES
    return AIM_FLOOR.name if is_floor else None
