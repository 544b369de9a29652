"""Accuracy of the communication cost model for world sizes with and without training samples.

Trains the model on samples of some world sizes and batch sizes. Tests it on held-out samples of the same sizes, on
samples of other world sizes, and on samples of a batch size between those of training. Reads only the configuration,
and writes nothing.

    .venv/bin/python benchmarks/cost_models/bench_comm_models.py  # the modelled cluster (topology), half a minute
    .venv/bin/python benchmarks/cost_models/bench_comm_models.py --backend gloo  # measured on this machine, two minutes

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
from cost_model_aims import table
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples
from neuroshard_pipeline.augment.pool import generate_pool
from neuroshard_pipeline.cost_models.comm_training import comm_data, comm_intervals, fit_comm, predict_comm
from neuroshard_pipeline.cost_models.intervals import coverage
from neuroshard_pipeline.cost_models.measured import CommData, split_samples
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.params import CommTrainParams
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.measurement.campaign import CommCampaign
from neuroshard_pipeline.measurement.topology import topology_costs
from neuroshard_pipeline.tables.frames import comm_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample

#: Settings by backend. World sizes in training are `seen`, those only in tests `unseen`. The most frequent batch size
#: is `batch_size`; `other_batches` also occur in training; `between` occurs only in tests. `samples` is the number of
#: samples that are split for training and tests, and `others` the number of further test samples per world size.
SETTINGS: dict[str, dict[str, Any]] = {
    "topology": {
        "seen": (2, 4, 8, 16), "unseen": (3, 6, 12, 32), "batch_size": 65536, "other_batches": (8192, 16384, 131072),
        "between": 32768, "samples": 800, "others": 60,
    },
    "gloo": {
        "seen": (2, 4, 8), "unseen": (3, 6), "batch_size": 512, "other_batches": (64, 128, 1024),
        "between": 256, "samples": 390, "others": 30,
    },
}  # fmt: skip

#: Numbers of rank orders and of samples from which the least error of a model that is blind to the order of ranks is
#: estimated. With these numbers, the estimate is accurate to half a percentage point.
ORDERS, ORDERED_SAMPLES = 60, 20

FIGURES = ("mape", "median_ape", "bias", "kendall_tau")


def main() -> None:
    """Print the table of errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=sorted(SETTINGS), default="topology")
    parser.add_argument("--seeds", type=int, default=3, help="number of splits and initial weights to average over")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[2]
    bootstrap_project(root)
    with KedroSession.create(root, env="base") as session:
        params = session.load_context().params
    settings = SETTINGS[arguments.backend]
    pool = generate_pool(params["augment"]["pool"])
    drawn = draw(pool, params["augment"]["comm_samples"], settings)
    costs = costs_of(drawn, params, arguments.backend)
    hardware = {"topology": params["topology"].facts} if arguments.backend == "topology" else {}
    ours = [params["train"]["comm"].model_copy(update={"seed": seed}) for seed in range(arguments.seeds)]
    rows = [row for of_seed in ours for row in comm_figures(drawn, costs, of_seed, settings, {"hardware": hardware})]
    frame = pd.DataFrame(rows).groupby(["direction", "ranks", "kind"], sort=False).mean()
    if arguments.backend == "topology":
        floors = pd.DataFrame(order_blind_floors(drawn, params["topology"].network)).set_index(["direction", "ranks"])
        frame = frame.join(floors, on=["direction", "ranks"])
    print(table(frame))
    for kind, of_kind in pd.DataFrame(rows).groupby("kind", sort=False):
        print(f"{kind}: mean error {of_kind['mape'].mean():.1%} over directions and world sizes")


def draw(pool: pd.DataFrame, params: CommSampleParams, settings: dict[str, Any]) -> pd.DataFrame:
    """Samples of all world sizes and batch sizes; the ids of samples that serve only for tests have a prefix."""
    seen, unseen, others = settings["seen"], settings["unseen"], settings["others"]
    base = params.model_copy(update={"batch_size": settings["batch_size"], "world_sizes": seen})
    changes = {
        "": {"num_samples": settings["samples"], "other_batch_sizes": settings["other_batches"]},
        "world-": {"world_sizes": unseen, "num_samples": others * len(unseen), "seed": base.seed + 1},
        "batch-": {"batch_size": settings["between"], "num_samples": others * len(seen), "seed": base.seed + 2},
    }
    frames = []
    for prefix, change in changes.items():
        alone = {"other_batch_share": 0.0} if prefix else {}
        drawn = comm_samples(pool, base.model_copy(update=change | alone))
        frames.append(drawn.assign(sample_id=prefix + drawn["sample_id"]))
    return pd.concat(frames, ignore_index=True)


def costs_of(drawn: pd.DataFrame, params: dict[str, Any], backend: str) -> pd.DataFrame:
    """Measured or modelled costs of all samples; prints the noise floor of the measurement."""
    samples = comm_samples_from_frame(drawn)
    protocol, seed = params["measure"]["comm"].model_copy(update={"backend": backend}), params["measure"]["seed"]
    shards = dict(CommCampaign(protocol, seed).run(samples, {}))
    print(f"noise floor: {CommCampaign(protocol, seed).summary(shards, samples).noise_floor}")
    return CommCampaign(protocol, seed, params["topology"]).costs(shards, samples)


def comm_figures(
    drawn: pd.DataFrame, costs: pd.DataFrame, params: CommTrainParams, settings: dict[str, Any], origin: dict[str, Any]
) -> list[dict[str, Any]]:
    """Train once and test on every world size."""
    data = comm_data(drawn, costs)
    training = data.take([row for row, name in enumerate(data.sample_ids) if name.startswith("comm-")])
    split = split_samples(training.sample_ids, params.validation_share, params.test_share, params.seed)
    model = fit_comm(training, split, params, origin)
    rows = []
    tests = {
        "seen": training.take(split.test),
        "unseen": of_worlds(data, settings["unseen"]),
        f"batch {settings['between']}": of_batch(data, settings["between"]),
    }
    for kind, tested in tests.items():
        for world in sorted({sample.world_size for sample in tested.samples}):
            part = of_worlds(tested, (world,))
            measured, predicted = part.costs_ms, predict_comm(model, part.samples)
            bounds = comm_intervals(model, part.samples)
            for column, direction in enumerate(("forward", "backward")):
                figures = accuracy(measured[:, column], predicted[:, column], None)
                row = {name: figures[name] for name in FIGURES}
                row["coverage"] = coverage(measured[:, column], bounds[column])
                rows.append({"direction": direction, "ranks": world, "kind": kind, **row})
    return rows


def order_blind_floors(drawn: pd.DataFrame, topology: NetworkParams) -> list[dict[str, Any]]:
    """Least mean error of a model that treats all ranks alike, per direction and world size of a modelled cluster.

    The cost of a rank also depends on which ranks share its host. A permutation-equivariant model does not know them,
    and its best prediction is about the median over all orders of the ranks. Here, it is the median over `ORDERS`
    random orders, for at most `ORDERED_SAMPLES` samples.
    """
    rows = []
    for world, members in drawn[~drawn["sample_id"].str.startswith("batch-")].groupby("world_size"):
        samples = comm_samples_from_frame(members)[:ORDERED_SAMPLES]
        gaps = np.stack([_order_gaps(sample, topology) for sample in samples]).mean(axis=0)
        rows += [
            {"direction": direction, "ranks": world, "order-blind floor": gap}
            for direction, gap in zip(("forward", "backward"), gaps, strict=True)
        ]
    return rows


def _order_gaps(sample: CommSample, topology: NetworkParams) -> np.ndarray:
    """Mean |median - cost| / cost over ranks and orders of one sample: (2,) forward and backward."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(sample.world_size) for _ in range(ORDERS)]
    dims, skew = np.array(sample.dim_sums), np.array(sample.start_skew_ms)
    renamed = [
        CommSample(str(at), sample.batch_size, tuple(dims[order].tolist()), tuple(skew[order].tolist()))
        for at, order in enumerate(orders)
    ]
    costs = topology_costs(renamed, topology)[["forward_ms", "backward_ms"]].to_numpy(dtype=float)
    by_place = costs.reshape(ORDERS, sample.world_size, 2)
    by_rank = np.stack([placed[np.argsort(order)] for placed, order in zip(by_place, orders, strict=True)])
    return np.abs(np.median(by_rank, axis=0) / by_rank - 1).mean(axis=(0, 1))


def of_worlds(data: CommData, world_sizes: Sequence[int]) -> CommData:
    """The samples of some world sizes."""
    return data.take([row for row, sample in enumerate(data.samples) if sample.world_size in world_sizes])


def of_batch(data: CommData, batch_size: int) -> CommData:
    """The samples of one batch size."""
    return data.take([row for row, sample in enumerate(data.samples) if sample.batch_size == batch_size])


if __name__ == "__main__":
    main()
