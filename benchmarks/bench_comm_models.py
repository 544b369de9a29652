"""How good the communication cost model is on world sizes that it was trained on, and on others.

Trains the universal network on samples of some world sizes and tests it on held-out samples of these and on samples of
world sizes that no training sample has; nothing is read but the configuration, and nothing is written.

    .venv/bin/python benchmarks/bench_comm_models.py                    # the modelled cluster (topology), half a minute
    .venv/bin/python benchmarks/bench_comm_models.py --backend gloo     # measured on this machine, two minutes

Aims: mean error at most 5 % on seen and 10 % on unseen world sizes of the modelled cluster; on gloo at most 1.5 times
the noise floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.splits import split_samples
from neuroshard_pipeline.cost_models.training_comm import CommData, comm_data, fit_comm, predict_comm
from neuroshard_pipeline.measurement.campaign import noise_floor, reduce_comm, run_comm_campaign
from neuroshard_pipeline.tables import comm_samples, comm_samples_from_frame, generate_pool

#: Per backend: trained and other world sizes, the batch, training samples and test samples of each other world size.
SETTINGS: dict[str, dict[str, Any]] = {
    "topology": {"seen": (2, 4, 8, 16), "unseen": (3, 6, 12, 32), "batch_size": 65536, "samples": 800, "others": 60},
    "gloo": {"seen": (2, 4, 8), "unseen": (3, 6), "batch_size": 512, "samples": 300, "others": 30},
}
FIGURES = ("mape", "median_ape", "bias", "kendall_tau")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=sorted(SETTINGS), default="topology")
    parser.add_argument("--seeds", type=int, default=3, help="splits and initial weights to average over")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    bootstrap_project(root)
    with KedroSession.create(root, env="base") as session:
        params = session.load_context().params
    settings = SETTINGS[arguments.backend]
    drawn = draw(params, settings)
    costs = costs_of(drawn, params, arguments.backend)
    hardware = {"topology": params["topology"].model_dump()} if arguments.backend == "topology" else {}
    inputs = drawn, costs, params["train"]["comm"], settings, {"hardware": hardware}
    rows = [row for seed in range(arguments.seeds) for row in judged(*inputs, seed)]
    frame = pd.DataFrame(rows).groupby(["direction", "ranks", "kind"], sort=False).mean()
    print(frame.to_string(formatters=dict.fromkeys(FIGURES[:3], "{:+.1%}".format) | {"kendall_tau": "{:.3f}".format}))
    for kind, of_kind in pd.DataFrame(rows).groupby("kind", sort=False):
        print(f"{kind}: mean error {of_kind['mape'].mean():.1%} over directions and world sizes")


def draw(params: dict[str, Any], settings: dict[str, Any]) -> pd.DataFrame:
    """Samples of all world sizes; those of the unseen ones have ids of their own."""
    pool = generate_pool(params["augment"]["pool"])
    base = params["augment"]["comm_samples"].model_copy(update={"batch_size": settings["batch_size"]})
    others = settings["others"] * len(settings["unseen"])
    seen = base.model_copy(update={"world_sizes": settings["seen"], "num_samples": settings["samples"]})
    unseen = base.model_copy(update={"world_sizes": settings["unseen"], "num_samples": others, "seed": base.seed + 1})
    other = comm_samples(pool, unseen)
    return pd.concat([comm_samples(pool, seen), other.assign(sample_id="other-" + other["sample_id"])])


def costs_of(drawn: pd.DataFrame, params: dict[str, Any], backend: str) -> pd.DataFrame:
    """Costs of all samples, measured or modelled, in one campaign; prints the noise floor of measured ones."""
    samples = comm_samples_from_frame(drawn)
    protocol, seed = params["measure"]["comm"].model_copy(update={"backend": backend}), params["measure"]["seed"]
    shards = dict(run_comm_campaign(samples, protocol, seed, {}))
    print(f"noise floor: {noise_floor(shards, samples, protocol, seed)}")
    return reduce_comm(shards, samples, protocol, seed, params["topology"])


def judged(
    drawn: pd.DataFrame, costs: pd.DataFrame, params: Any, settings: dict[str, Any], origin: dict[str, Any], seed: int
) -> list[dict[str, Any]]:
    """Train once and test on every world size."""
    data = comm_data(drawn, costs)
    training = of_worlds(data, settings["seen"])
    split = split_samples(training.sample_ids, params.validation_share, params.test_share, seed)
    model, _ = fit_comm(training, split, params.model_copy(update={"seed": seed}), origin)
    rows = []
    for kind, tested in (("seen", training.take(split.test)), ("unseen", of_worlds(data, settings["unseen"]))):
        for world in sorted({sample.world_size for sample in tested.samples}):
            part = of_worlds(tested, (world,))
            measured, predicted = np.concatenate(part.costs), np.concatenate(predict_comm(model, part.samples))
            for column, direction in enumerate(("forward", "backward")):
                figures = accuracy(measured[:, column], predicted[:, column], None)
                rows.append({"direction": direction, "ranks": world, "kind": kind, **{f: figures[f] for f in FIGURES}})
    return rows


def of_worlds(data: CommData, world_sizes: Sequence[int]) -> CommData:
    """The samples of some world sizes."""
    return data.take([row for row, sample in enumerate(data.samples) if sample.world_size in world_sizes])


if __name__ == "__main__":
    main()
