"""Samples of a made-up machine (`machine`), and models trained on them."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel
from neuroshard_pipeline.cost_models.comm_training import fit_comm
from neuroshard_pipeline.cost_models.compute_training import fit_compute
from neuroshard_pipeline.cost_models.measured import CommData, ComputeData, split_samples
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table

from .machine import BATCH_SIZE, make_comm_sample, make_shards, make_table, true_comm_ms, true_compute_ms

FIT = {
    "members": 2,
    "hidden": 16,
    "epochs": 40,
    "batch_samples": 32,
    "learning_rate": 0.01,
    "weight_decay": 0.1,
    "small_error": 0.05,
    "validation_share": 0.1,
    "test_share": 0.2,
    "seed": 0,
}

HEAD = {"gates": 2, "pressures": 2}


@pytest.fixture(scope="session")
def tables() -> list[Table]:
    rng = np.random.default_rng(0)
    return [make_table(rng, f"t{index}") for index in range(120)]


@pytest.fixture(scope="session")
def compute_training(tables: list[Table]) -> ComputeData:
    rng = np.random.default_rng(1)
    samples, costs = [], []
    for index in range(250):
        shards = make_shards(rng, tables, int(rng.integers(1, 16)))
        samples.append(ComputeSample(f"compute-{index:06d}", BATCH_SIZE, shards))
        costs.append(true_compute_ms(shards, BATCH_SIZE) * rng.normal(1, 0.01))
    return ComputeData(tuple(samples), np.array(costs), left_out=0)


@pytest.fixture(scope="session")
def compute_params() -> ComputeTrainParams:
    return ComputeTrainParams(**FIT, **HEAD)


@pytest.fixture(scope="session")
def compute_model(compute_training: ComputeData, compute_params: ComputeTrainParams) -> ComputeCostModel:
    """A compute cost model, trained on the made-up machine."""
    split = split_samples(compute_training.sample_ids, 0.1, 0.2, 0)
    return fit_compute(compute_training, split, compute_params, {})


@pytest.fixture(scope="session")
def comm_training() -> CommData:
    rng = np.random.default_rng(2)
    samples = tuple(make_comm_sample(rng, index, int(rng.choice([2, 4, 8]))) for index in range(200))
    return CommData(samples, tuple(true_comm_ms(sample) for sample in samples), left_out=0)


@pytest.fixture(scope="session")
def comm_params() -> CommTrainParams:
    return CommTrainParams(**FIT)


@pytest.fixture(scope="session")
def comm_model(comm_training: CommData, comm_params: CommTrainParams) -> CommCostModel:
    """A communication cost model for all world sizes, trained on the made-up machine."""
    split = split_samples(comm_training.sample_ids, 0.1, 0.2, 0)
    return fit_comm(comm_training, split, comm_params, {})
