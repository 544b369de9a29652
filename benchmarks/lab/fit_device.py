"""Fits the parameters of kernels (`device.KernelParams`), which all GPUs share, to published and recorded lookup times.

The fit minimises the squared logarithm of predicted / published time; large errors count less (`soft_l1`). Published
times of one source with the same part (such as the forward pass), number of tables, placement and optimizer together
weigh as much as one time, so that six steps of one trace do not outweigh another publication. Times below 50 us weigh
less. A number that the rows do not determine stays in the middle of its range.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from published_lookups import Part, PublishedLookup
from scipy.optimize import least_squares

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.device import DeviceParams, KernelParams, LookupTime, ModelledDevice
from neuroshard_pipeline.lab.lookup_work import LookupWork, lookup_work

BACKWARD_KERNELS = 19  # launches of one backward pass in the published traces of A100

#: Smallest and largest value of every fitted number, and the reason.
BOUNDS: dict[str, tuple[float, float, str]] = {
    "forward_launch_us": (4, 8, "the smallest forward kernel takes 7 us (published) and 8 us (H200)"),
    "backward_launch_us": (30, 200, "small backward passes take 36 us (H200), 108 us (B200) and 205 us (A100)"),
    "hbm_efficiency": (0.80, 0.92, "streaming kernels reach 0.92; gathers of rows of 256 bytes 0.82"),
    "update_efficiency": (0.20, 0.90, "reads and writes of rows alternate; below the efficiency of reads"),
    "l2_efficiency": (0.25, 0.70, "microbenchmarks of L2 reach 0.7 of the bytes per clock of the white papers"),
    "bag_latency_us": (0.5, 12.0, "two to eight dependent accesses, several times as long on a busy GPU"),
    "row_latency_us": (0.3, 2.0, "one dependent read: 0.2 us on an idle GPU, several times that on a busy one"),
    "miss_latency_us": (0.1, 0.6, "HBM takes 0.2 to 0.3 us longer than L2 on an idle GPU"),
    "wide_row_share": (0.25, 1.0, "the reads of one row overlap in part"),
    "sort_bytes_per_id": (
        100,
        320,
        "keys and values of 12 to 16 bytes, read and written 4 to 8 times, plus linearising",
    ),
    "hot_row_us": (2, 40, "a block of threads adds up the gradients of up to 1024 ids of the row"),
    "weight_gradient_factor": (1.0, 3.0, "the kernel reads rows, as forward does, and gradients of bags"),
    "host_efficiency": (0.50, 0.90, "reads of rows over PCIe against the bandwidth of the link"),
    "cache_fetch_share": (0.2, 1.0, "some distinct rows of a batch are new to the cache"),
    "cache_evict_share": (0.1, 2.0, "a missing row is fetched, and another may be written back"),
}

#: Words in the names of the sources that the fit uses, and their weight (data/01_raw/published/README.md). The fit
#: ignores other sources, for example because they do not state the GPU, their shape was inferred, or their kernel is
#: not an embedding lookup.
TRUSTED = {"HolisticTraceAnalysis": 1.0, "recsys-examples": 1.0, "et_replay": 1.0, "this project": 1.0}
_SHORT_US = 50.0  # shorter times consist mostly of launches; these times count less
_SHORT_WEIGHT = 0.4
_RANGE_WEIGHT = 0.1  # of the distance from the middle of the range
_INLIER = 0.1  # relative errors above this count linearly

#: What remains of a published backward pass without its part `reduction`, two kernels that add up gradients and update
#: rows.
_PREPARATION = "preparation"


_Known = tuple[PublishedLookup, LookupWork]


class _Target(NamedTuple):
    row: int
    part: str
    published_us: float
    weight: float


def reduction_us(time: LookupTime) -> Any:
    """Time of the two backward kernels that reduce gradients and update rows: one by warps, one by blocks."""
    parts = time.backward_parts
    return parts["launch"] * 2 / BACKWARD_KERNELS + parts["reduce"] + parts["update"]


def predicted_us(time: LookupTime, part: Part) -> Any:
    """The modelled time that corresponds to a published part."""
    return {
        "forward": time.forward_us,
        "backward": time.backward_us,
        "total": time.forward_us + time.backward_us,
        "reduction": reduction_us(time),
    }[part]


def trust_of(source: str) -> float:
    """Weight of a source in the fit; 0 if the fit ignores it."""
    return max((weight for words, weight in TRUSTED.items() if words in source), default=0.0)


def fit_kernels(rows: Sequence[PublishedLookup], devices: Mapping[str, DeviceParams]) -> KernelParams:
    """The shared numbers that describe the trusted rows best.

    Args:
        rows: published lookups; those of other sources than `TRUSTED` are ignored.
        devices: GPUs by name.

    Raises:
        MeasurementError: no row is trusted.
    """
    return _fit(_trusted_work(rows, devices), devices)


def _fit(known: Sequence[_Known], devices: Mapping[str, DeviceParams]) -> KernelParams:
    if not known:
        raise MeasurementError("no published lookup of a trusted source to fit to; see fit_device.TRUSTED")
    targets, names = _targets([row for row, _ in known]), list(BOUNDS)
    published, weights = (np.array([getattr(each, of) for each in targets]) for of in ("published_us", "weight"))
    rows_of: dict[str, list[int]] = {}  # known rows by GPU
    for at, (row, _) in enumerate(known):
        rows_of.setdefault(row.preset, []).append(at)
    works = {preset: _stacked([known[at][1] for at in rows]) for preset, rows in rows_of.items()}
    place_of = {at: place for rows in rows_of.values() for place, at in enumerate(rows)}
    row_places = np.array([place_of[target.row] for target in targets])
    groups: dict[tuple[str, str], list[int]] = {}  # targets by GPU and part
    for place, target in enumerate(targets):
        groups.setdefault((known[target.row][0].preset, target.part), []).append(place)
    low, high = (np.log([BOUNDS[name][side] for name in names]) for side in (0, 1))
    middle = (low + high) / 2

    def residuals(logarithms: FloatArray) -> FloatArray:
        kernels = KernelParams(**dict(zip(names, np.exp(logarithms).tolist(), strict=True)))
        times = {
            preset: ModelledDevice(device=devices[preset], kernels=kernels).time_of_work(work)
            for preset, work in works.items()
        }
        predicted = np.empty(len(targets))
        for (preset, part), places in groups.items():
            predicted[places] = _target_us(times[preset], part)[row_places[places]]
        errors = weights * np.log(predicted / published)
        return np.concatenate([errors, _RANGE_WEIGHT * (logarithms - middle) / (high - low)])

    kept = {"loss": "soft_l1", "f_scale": _INLIER, "diff_step": 1e-3, "ftol": 1e-6}  # smaller: 0.5 % other numbers
    fit = least_squares(residuals, middle, bounds=(low, high), **kept)
    return KernelParams(**dict(zip(names, np.exp(fit.x).tolist(), strict=True)))


def repository_of(source: str) -> str:
    """The repository of a source: `owner/name` of `owner/name@commit:file` or `owner/name#issue`."""
    return re.split(r"[@:#]", source)[0]


def fits_without_sources(
    rows: Sequence[PublishedLookup], devices: Mapping[str, DeviceParams], by_repository: bool = False
) -> dict[str, KernelParams]:
    """For every source, the numbers that are fitted without any row of this source.

    Args:
        rows: published lookups.
        devices: GPUs by name.
        by_repository: leave out all sources of the same repository together.
    """
    group_of: Callable[[str], str] = repository_of if by_repository else str
    sources = dict.fromkeys(row.source for row in rows)
    known = _trusted_work(rows, devices)
    everything = _fit(known, devices)
    fits = {}
    for group in {group_of(row.source) for row, _ in known}:
        fits[group] = _fit([each for each in known if group_of(each[0].source) != group], devices)
    return {source: fits.get(group_of(source), everything) for source in sources}


def _trusted_work(rows: Sequence[PublishedLookup], devices: Mapping[str, DeviceParams]) -> list[_Known]:
    """The trusted rows and their work."""
    trusted = [row for row in rows if trust_of(row.source) > 0]
    return [(row, lookup_work(row.lookup, devices[row.preset].l2_mib * 2**20)) for row in trusted]


def _stacked(works: Sequence[LookupWork]) -> LookupWork:
    """The work of L lookups in arrays (L,) and (L, S); lookups of fewer shards get further ones without ids."""
    most = max(len(work.ids_per_bag) for work in works)
    padded = [
        work._replace(
            reads_per_row=np.pad(work.reads_per_row, (0, most - len(work.reads_per_row))),
            ids_per_bag=np.pad(work.ids_per_bag, (0, most - len(work.ids_per_bag))),
        )
        for work in works
    ]
    return LookupWork(*(np.array(values) for values in zip(*padded, strict=True)))


def _target_us(time: LookupTime, part: str) -> Any:
    if part == _PREPARATION:
        return time.backward_us - reduction_us(time)
    return predicted_us(time, part)  # type: ignore[arg-type]


def _targets(rows: Sequence[PublishedLookup]) -> list[_Target]:
    """Published times of all rows, weighted as described at the top of this file."""
    found = []
    for index, row in enumerate(rows):
        times: dict[str, float] = {str(part): us for part, us in row.times_us.items()}
        if "backward" in times and "reduction" in times:
            times[_PREPARATION] = times["backward"] - times["reduction"]
        lookup = row.lookup
        group = (row.source, len(lookup.ids), lookup.placement, lookup.optimizer)
        found += [(index, (*group, part), part, us) for part, us in times.items() if us > 0]
    members = Counter(group for _, group, _, _ in found)
    return [
        _Target(
            index,
            part,
            us,
            trust_of(rows[index].source) * (1.0 if us >= _SHORT_US else _SHORT_WEIGHT) / members[group] ** 0.5,
        )
        for index, group, part, us in found
    ]
