"""Compares the lab (modelled GPUs and networks) with published measurements.

    python benchmarks/lab/check_gpu_lab.py  # fbgemm_lookups.csv and collectives.csv
    python benchmarks/lab/check_gpu_lab.py --lookups A.csv --collectives B.csv
    python benchmarks/lab/check_gpu_lab.py --only lookups --worst 20
    python benchmarks/lab/check_gpu_lab.py --only steps  # steps.yml, to which nothing is fitted
    python benchmarks/lab/check_gpu_lab.py --fit  # lab.kernels of conf/base/parameters_lab.yml

The check has three parts: lookups, collectives, and whole steps. The first two print median and 90th percentile of the
relative error: per source, per device, per size class, and over all points predicted in the same way. Points whose
source is in data/01_raw/published are predicted by a model that was fitted without their source (for collectives,
without their publisher), other points by the shipped numbers. Collectives are also predicted by a fit to other sizes on
the same cluster. Exits with 1 if an aim is missed, and with 2 if a file cannot be read. Takes two minutes on one core.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_lab_collectives import check_collectives
from gpu_lab_lookups import check_lookups, fitted_kernels
from gpu_lab_points import Check
from gpu_lab_steps import PUBLISHED as STEPS
from gpu_lab_steps import check_steps, left_out_table, steps_table

from neuroshard_pipeline.errors import NeuroShardError

PUBLISHED = Path(__file__).resolve().parents[2] / "data" / "01_raw" / "published"


def print_check(check: Check, worst: int) -> bool:
    """Print the tables of one part; returns whether an aim is missed."""
    print(f"\n{check.title}\n{'=' * len(check.title)}")
    if check.title.startswith("Steps"):
        print(f"\n{steps_table(check)}\n\n{left_out_table(STEPS)}")
    elif check.points:
        for by in (["how", "source"], ["how", "device"], ["how", "size"], ["how"]):
            print(f"\n{check.table(by).to_string(float_format='{:.3f}'.format)}")
    for reason, rows in Counter(check.skipped).items():
        print(f"no prediction for {rows} rows: {reason}")
    for assumption, rows in Counter(check.assumed).items():
        print(f"assumed for {rows} rows: {assumption}")
    for point in sorted(check.points, key=lambda point: -point.factor)[:worst]:
        print(
            f"{point.factor:6.2f}x: {point.published_us:10.1f} us published, "
            f"{point.predicted_us:10.1f} us predicted: {point.what}"
        )
    print()
    missed = False
    for aim in check.aims:
        lines, aim_missed = aim.lines(check.points)
        missed |= aim_missed
        print("\n".join(lines))
    return missed


def main() -> int:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookups", type=Path, default=PUBLISHED / "fbgemm_lookups.csv")
    parser.add_argument("--collectives", type=Path, default=PUBLISHED / "collectives.csv")
    parser.add_argument("--only", choices=["lookups", "collectives", "steps"], help="run one part")
    parser.add_argument("--steps", type=Path, default=STEPS)
    parser.add_argument("--fit", action="store_true", help="print lab.kernels fitted to fbgemm_lookups.csv, and stop")
    parser.add_argument("--by-repository", action="store_true", help="lookups: leave out whole repositories in turn")
    parser.add_argument("--worst", type=int, default=10, help="number of the largest errors to list")
    arguments = parser.parse_args()
    if arguments.fit:
        print("\n".join(f"    {name}: {value:.4g}" for name, value in fitted_kernels().model_dump().items()))
        return 0
    lookups = partial(check_lookups, by_repository=arguments.by_repository)
    parts = {
        "lookups": (lookups, arguments.lookups),
        "collectives": (check_collectives, arguments.collectives),
        "steps": (check_steps, arguments.steps),
    }
    missed = False
    for name, (check, path) in parts.items():
        if arguments.only in (None, name):
            missed |= print_check(check(path), arguments.worst)
    return int(missed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NeuroShardError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
