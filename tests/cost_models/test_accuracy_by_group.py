"""Groups of samples on which a model is evaluated but not trained."""

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.cost_models.compute_training import compute_data, predict_compute, train_compute_model
from neuroshard_pipeline.cost_models.group_accuracy import accuracy_by_group
from neuroshard_pipeline.cost_models.metrics import mape
from neuroshard_pipeline.tables.frames import tables_to_frame

from .machine import true_compute_ms

PURPOSES = ("training", "shop", "batch_extrapolation")


@pytest.fixture(scope="module")
def frames(compute_training):
    """Samples of which every tenth is for evaluation only, alternately in the last two groups of `PURPOSES`."""
    rows, settings, costs = [], [], []
    for index, sample in enumerate(compute_training.samples):
        purpose = PURPOSES[0 if index % 10 else 1 + index // 10 % 2]
        batch_size = 1024 if purpose == "batch_extrapolation" else sample.batch_size
        rows += [(sample.sample_id, batch_size, shard.table.name, shard.embedding_dim) for shard in sample.shards]
        settings.append((sample.sample_id, "rowwise_adagrad" if purpose == "shop" else "sgd", purpose))
        costs.append((sample.sample_id, *true_compute_ms(sample.shards, batch_size), None))
    tables = {shard.table.name: shard.table for sample in compute_training.samples for shard in sample.shards}
    return (
        pd.DataFrame(rows, columns=["sample_id", "batch_size", "table", "embedding_dim"]),
        tables_to_frame(list(tables.values())).drop(columns="embedding_dim"),
        pd.DataFrame(costs, columns=["sample_id", "forward_ms", "backward_ms", "error"]),
        pd.DataFrame(settings, columns=["sample_id", "optimizer", "purpose"]),
    )


@pytest.fixture(scope="module")
def trained(frames, compute_params):
    samples, pool, costs, settings = frames
    provenance = {"noise_floor": {part: {"median": 0.01} for part in ("total", "forward", "backward")}}
    return train_compute_model(samples, pool, costs, compute_params, provenance, settings)


def test_samples_of_groups_are_not_trained_on(frames, trained):
    *_, settings = frames
    model, metrics, held_out = trained
    about = metrics["compute"]
    training = settings[settings["purpose"] == "training"]
    assert about["n_train"] + about["n_validation"] + about["n_test"] == len(training)
    assert set(held_out["sample_id"]) <= set(training["sample_id"])
    assert model.provenance["training_range"]["optimizer"] == ["sgd"]
    assert model.provenance["training_range"]["batch_size"] == [512, 512]


def test_every_group_has_its_accuracy(frames, trained):
    samples, pool, costs, settings = frames
    model, _, held_out = trained
    metrics, judged = accuracy_by_group(model, samples, pool, settings, costs, held_out)
    assert set(metrics) == {"compute_shop", "compute_batch_extrapolation", "compute_generated_tables"}
    for group in ("shop", "batch_extrapolation"):
        data = compute_data(*frames, group)
        expected = mape(data.costs_ms.sum(axis=1), predict_compute(model, data.samples).sum(axis=1))
        assert metrics[f"compute_{group}"]["mape"] == pytest.approx(expected)
        assert metrics[f"compute_{group}"]["n_test"] == len(data.samples)
        assert 0 <= metrics[f"compute_{group}"]["coverage_90"] <= 1
        assert (judged["group"] == group).sum() == len(data.samples)
    assert (judged["low_ms"] <= judged["high_ms"]).all()


def test_failed_samples_are_left_out_of_their_group(frames, trained):
    samples, pool, costs, settings = frames
    model, _, held_out = trained
    failed = costs["sample_id"].isin(settings.loc[settings["purpose"] == "shop", "sample_id"])
    broken = costs.assign(forward_ms=costs["forward_ms"].where(~failed), error=np.where(failed, "out of memory", None))
    metrics, _ = accuracy_by_group(model, samples, pool, settings, broken, held_out)
    assert "compute_shop" not in metrics
    assert "compute_batch_extrapolation" in metrics
