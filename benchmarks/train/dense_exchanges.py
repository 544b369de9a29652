"""What the exchanges of a dense network cost on 2 hosts of 4 ranks, by the network's formulas: nothing is measured.

For the models of `train_check` with its default sizes on the tables of MLPerf DLRM-v2, and for a DHEN with wider
layers: MB of weights; and, by form of the dense network, ms of all its collectives in a step, one after another, and MB
that each host sends (all-reduces in trees, others in rings).

    python benchmarks/train/dense_exchanges.py
"""

import itertools
from pathlib import Path

import pandas as pd
import torch
import yaml

from neuroshard_pipeline.lab.network import NetworkParams, collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.torchrec_bridge.train_check.model import dense_network
from neuroshard_pipeline.torchrec_bridge.train_check.params import DhenParams, TrainingParams

ROOT = Path(__file__).resolve().parents[2]
HOSTS, PER_HOST = 2, 4
RANKS = HOSTS * PER_HOST
PARAMS = TrainingParams(
    **yaml.safe_load((ROOT / "conf/base/parameters_train_check.yml").read_text())["train_check"]["training"]
)
WIDE = {"dhen": DhenParams(layers=3, width=64, outputs=8, heads=2), "cross_rank": 64}


def layers_of(name: str, params: TrainingParams) -> list[int]:
    """Bytes of the layers of a dense network, each of which `fully_shard` gathers on its own."""
    with torch.device("meta"):
        network = dense_network(name, read_tables(str(ROOT / "data/01_raw/mlperf_dlrm_v2.csv")), params)
    return [sum(each.nbytes for each in layer.parameters()) for layer in network.layers]


def costs(layers: list[int], network: NetworkParams) -> dict[str, tuple[float, float]]:
    """By form: ms of the collectives of a step, and MB that a host sends."""

    def ms(kind: str, size: float, ranks: int, hosts: int) -> float:
        return float(collective_us(kind, size, ranks, hosts, network)) / 1e3

    def sharded(ranks: int, hosts: int) -> float:
        return sum(
            2 * ms("all_gather", size, ranks, hosts) + ms("reduce_scatter", size, ranks, hosts) for size in layers
        )

    total = sum(layers)
    across = sum(ms("all_reduce", size / PER_HOST, HOSTS, HOSTS) for size in layers)
    ring, tree, mega = (RANKS - 1) / RANKS, 2 * (HOSTS - 1) / HOSTS, total / 1e6
    return {
        "ddp": (ms("all_reduce", total, RANKS, HOSTS), tree * mega),
        "fsdp2": (sharded(RANKS, HOSTS), 3 * ring * mega),
        "hybrid": (sharded(PER_HOST, 1) + across, tree * mega),
    }


if __name__ == "__main__":
    rows = []
    sizes = [("dlrm", PARAMS), ("dhen", PARAMS), ("dhen, wide", PARAMS.model_copy(update=WIDE))]
    for (name, params), gbit in itertools.product(sizes, (100, 5)):
        layers = layers_of(name.split(",", maxsplit=1)[0], params)
        found = costs(layers, network_preset(f"ethernet-{gbit}", PER_HOST))
        for form, (ms, megabytes) in found.items():
            rows.append((name, f"{sum(layers) / 1e6:.2f}", gbit, form, round(ms, 2), round(megabytes, 2)))
    columns = ["model", "MB", "Gbit/s", "form", "ms", "MB sent by a host"]
    print(
        pd.DataFrame(rows, columns=columns).pivot_table(index=columns[:3], columns="form", values=["ms", columns[-1]])
    )
