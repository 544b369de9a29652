"""Prints modelled clusters to paste below `lab.networks` of conf/base/parameters_lab.yml.

    make fit-network LOG=nccl.log                        one cluster, fitted to a log of nccl-tests
    make fit-network LOG=nccl.log CLUSTER=h100-efa       on the network of this cluster; default: the GPU's usual one
    make fit-network LOG=nccl.log COLLECTIVE=alltoall    for logs that do not name their collective
    make fit-network                                     all presets, fitted to the published collectives

The fit of a log starts from the preset of its cluster, so that numbers which the log does not show keep their values: a
log of one host says nothing about the network. A table shows two errors for every line of the log: that of this fit,
and that of a further fit which leaves out the size of this line, together with every fifth size below and above it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "lab"))


from cluster_sheets import network_sheets, preset_yaml
from fit_network import fit_cluster, fit_networks, from_other_sizes, predicted_us
from nccl_log import read_nccl_log
from published_collectives import read_published_collectives

from neuroshard_pipeline.errors import NeuroShardError, did_you_mean
from neuroshard_pipeline.lab.network import COLLECTIVES
from neuroshard_pipeline.lab.network_presets import network_preset

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "01_raw" / "published"


def print_presets() -> None:
    """All presets, fitted together to the published collectives."""
    sheets = network_sheets()
    files = sorted(PUBLISHED.glob("collectives*.csv"))
    rows = [row for file in files for row in read_published_collectives(file, sheets.gpus, sheets.clusters)[0]]
    fitted = fit_networks(rows, sheets)
    for name in sheets.clusters:
        count = sum(row.cluster.name == name and not row.noisy for row in rows)
        print(preset_yaml(name, fitted.params(name), f"{count} rows of data/01_raw/published"))


def print_fit(log: Path, cluster: str | None, collective: str | None) -> None:
    """One cluster, fitted to a log, and its errors."""
    sheets = network_sheets()
    if cluster is not None and cluster not in sheets.clusters:
        known = ", ".join(sheets.clusters)
        raise NeuroShardError(
            f"CLUSTER={cluster} is unknown{did_you_mean(cluster, sheets.clusters)}\nUse one of {known}"
        )
    named = next((name for name in COLLECTIVES if name == collective), None)
    if collective is not None and named is None:
        raise NeuroShardError(f"COLLECTIVE={collective} is unknown; use one of {', '.join(COLLECTIVES)}")
    rows = read_nccl_log(log, sheets.gpus, sheets.clusters, cluster, named)
    name = rows[0].cluster.name
    start = network_preset(name)
    fitted = fit_cluster(rows, name, start, sheets)
    print(preset_yaml(f"{name}-fitted", fitted, f"fitted to {len(rows)} lines of {log.name}, from {name}"))
    tested, times = from_other_sizes(rows, name, start, sheets)
    of_fit = dict(zip((row.where for row in rows), predicted_us(rows, fitted, sheets.fit.one_process_us), strict=True))
    print(f"\n{'collective':>16} {'ranks':>5} {'bytes':>12} {'measured us':>12} {'fit':>8} {'size left out':>14}")
    for row, us in sorted(zip(tested, times, strict=True), key=lambda pair: (pair[0].collective, pair[0].size_bytes)):
        errors = f"{of_fit[row.where] / row.time_us - 1:>+8.1%} {us / row.time_us - 1:>+14.1%}"
        print(f"{row.collective:>16} {row.ranks:>5} {row.size_bytes:>12.0f} {row.time_us:>12.1f} {errors}")
    if tested:
        error = np.median([abs(us / row.time_us - 1) for row, us in zip(tested, times, strict=True)])
        print(f"median error at left-out sizes: {error:.1%}")


def main() -> int:
    """Fit what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, nargs="?", help="output of nccl-tests; without it, all presets")
    parser.add_argument("--cluster", help="name of a cluster in lab.clusters")
    parser.add_argument("--collective", help="which collective the log measured")
    arguments = parser.parse_args()
    try:
        if arguments.log is None:
            print_presets()
        else:
            print_fit(arguments.log, arguments.cluster, arguments.collective)
    except NeuroShardError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
