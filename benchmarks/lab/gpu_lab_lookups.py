"""The lookups half of benchmarks/lab/check_gpu_lab.py: the modelled GPUs beside published lookups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fit_device import fit_kernels, fits_without_sources, predicted_us
from gpu_lab_points import LEFT_OUT, PREDICTED, Aim, Check, Point
from published_lookups import PublishedLookup, read_published_lookups
from recorded_lookups import SOURCE, recorded_lookups

from neuroshard_pipeline.lab.device import DeviceParams, KernelParams, ModelledDevice
from neuroshard_pipeline.lab.params import lab_values

OURS = Path(__file__).resolve().parents[2] / "data" / "01_raw" / "published" / "fbgemm_lookups.csv"
AIM = Aim("lookups above 50 us on A100, H100, V100", {"median": 0.20, "p90": 0.50})
_AIMED_FAMILIES = ("a100", "h100", "v100")
_AIMED_FROM_US = 50.0
_SIZES = ((50.0, "below 50 us"), (1000.0, "50 us to 1 ms"), (float("inf"), "from 1 ms"))


def check_lookups(path: Path, by_repository: bool = False) -> Check:
    """Predict all rows that can be modelled of a file with the columns of data/01_raw/published/fbgemm_lookups.csv."""
    values = lab_values()
    devices = {name: DeviceParams(**sheet) for name, sheet in values["devices"].items()}
    shipped = KernelParams(**values["kernels"])
    rows, skipped = read_published_lookups(path, devices)
    known = known_lookups(devices)
    # For speed, the fits that leave out a source see a quarter of the recorded samples.
    few = [row for at, row in enumerate(known) if row.source != SOURCE or at % 4 == 0]
    without = fits_without_sources(few, devices, by_repository)
    if path == OURS:
        rows = [*known, *recorded_lookups(fitted=False)]
    points = []
    for row in rows:
        kernels = without.get(row.source, shipped)
        how = LEFT_OUT if row.source in without else PREDICTED
        points += _points(row, ModelledDevice(device=devices[row.preset], kernels=kernels), how)
    return Check(f"Lookups: {path}", points, [AIM], skipped)


def known_lookups(devices: Mapping[str, DeviceParams]) -> list[PublishedLookup]:
    """The published lookups in the repository, and those of its recording that the fit sees."""
    return [*read_published_lookups(OURS, devices)[0], *recorded_lookups(fitted=True)]


def fitted_kernels() -> KernelParams:
    """The numbers that all GPUs share, fitted to the published and recorded lookups in the repository."""
    devices = {name: DeviceParams(**sheet) for name, sheet in lab_values()["devices"].items()}
    return fit_kernels(known_lookups(devices), devices)


def _points(row: PublishedLookup, device: ModelledDevice, how: str) -> list[Point]:
    time = device.time(row.lookup)
    family = row.preset.split("-")[0]
    points = []
    for part, published_us in row.times_us.items():
        if part == "reduction" and "backward" in row.times_us:
            continue  # it is a part of the backward time, which the row also has
        aimed = family in _AIMED_FAMILIES and published_us >= _AIMED_FROM_US
        size = next(name for limit, name in _SIZES if published_us < limit)
        what = f"{row.preset} {part}, {row.where}, {row.source}"
        aim = AIM.name if aimed else None
        points.append(Point(row.source, row.preset, size, published_us, predicted_us(time, part), how, aim, what))
    return points
