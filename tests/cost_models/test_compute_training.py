import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.cost_models.compute_training import compute_data, fit_compute, train_compute_model
from neuroshard_pipeline.cost_models.measured import ComputeData, split_samples
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.workers import WorkerParams

from .machine import BATCH_SIZE, DIMS, make_shards, make_table, true_compute_ms

CONTRACT = {"mape", "median_ape", "r2", "kendall_tau", "noise_floor"}
PROVENANCE = {
    "noise_floor": {part: {"median": 0.02} for part in ("total", "forward", "backward")},
    "hardware": {"device": "made up"},
    "data_versions": {},
}


@pytest.fixture(scope="module")
def frames():
    """Pool, samples and costs as the augment and measure stages save them; three samples failed."""
    rng = np.random.default_rng(3)
    pool = pd.DataFrame([_pool_row(make_table(rng, f"t{index}")) for index in range(60)])
    rows = [
        (f"compute-{index:06d}", BATCH_SIZE, f"t{table}", int(rng.choice(DIMS)))
        for index in range(80)
        for table in rng.choice(60, size=rng.integers(1, 10), replace=False)
    ]
    samples = pd.DataFrame(rows, columns=["sample_id", "batch_size", "table", "embedding_dim"])
    made = compute_samples_from_frame(samples, pool)
    costs = pd.DataFrame(
        [(s.sample_id, *true_compute_ms(s.shards, BATCH_SIZE), 0.01, 3, None) for s in made],
        columns=["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"],
    )
    costs.loc[3, ["forward_ms", "error"]] = [np.nan, "out of memory"]
    costs.loc[4, "backward_ms"] = np.nan
    costs.loc[5, "error"] = "killed"
    return samples, pool, costs


def _pool_row(table):
    profile = {f"reuse_{index:02d}": share for index, share in enumerate(table.reuse)}
    return {
        "table": table.name, "num_embeddings": table.num_embeddings, "pooling_factor": table.pooling_factor,
        "unique_rows": table.unique_rows, **profile,
    }  # fmt: skip


@pytest.fixture(scope="module")
def trained(frames, compute_params):
    return train_compute_model(*frames, compute_params, PROVENANCE)


def test_metrics_follow_the_contract(trained):
    _, metrics, _ = trained
    assert set(metrics) == {"compute", "compute_forward", "compute_backward"}
    for figures in metrics.values():
        assert set(figures) >= CONTRACT
        assert figures["noise_floor"] == 0.02
        assert figures["n_left_out"] == 3
        assert figures["n_train"] + figures["n_validation"] + figures["n_test"] == 77
    json.dumps(metrics)


def test_metrics_contain_the_coverage_of_intervals(trained):
    _, metrics, held_out = trained
    total = held_out[held_out["model"] == "compute"]
    inside = (total["measured_ms"] >= total["low_ms"]) & (total["measured_ms"] <= total["high_ms"])
    assert metrics["compute"]["coverage_90"] == inside.mean()
    width = ((total["high_ms"] - total["low_ms"]) / total["predicted_ms"]).mean()
    assert metrics["compute"]["mean_relative_width"] == pytest.approx(width)
    assert "coverage_90" not in metrics["compute_forward"]


def test_the_held_out_frame_has_predictions_beside_measurements(trained, frames):
    _, metrics, held_out = trained
    assert list(held_out.columns) == ["model", "sample_id", "rank", "measured_ms", "predicted_ms", "low_ms", "high_ms"]
    assert len(held_out) == 3 * metrics["compute"]["n_test"]
    assert held_out["rank"].isna().all()
    costs = frames[2].set_index("sample_id")
    for row in held_out[held_out["model"] == "compute"].itertuples():
        assert row.measured_ms == costs.loc[row.sample_id, ["forward_ms", "backward_ms"]].sum()
        assert row.sample_id not in {"compute-000003", "compute-000004", "compute-000005"}


def test_training_again_in_two_workers_gives_the_same_model(frames, compute_params):
    params = compute_params.model_copy(update={"epochs": 20, "learning_rate": 0.1})
    workers = WorkerParams(engine="local", address=None, workers=2, timeout_s=120)
    trained = train_compute_model(*frames, params, PROVENANCE)
    again, metrics, held_out = train_compute_model(*frames, params, PROVENANCE, None, workers)
    for name, value in trained[0].network.weights.items():
        np.testing.assert_allclose(again.network.weights[name], value, rtol=1e-3, atol=1e-3)
    pd.testing.assert_frame_equal(held_out, trained[2], rtol=1e-3)
    assert metrics["compute"]["mape"] == pytest.approx(trained[1]["compute"]["mape"], rel=0.01)


def test_another_seed_gives_another_model(frames, trained, compute_params):
    other, _, _ = train_compute_model(*frames, compute_params.model_copy(update={"seed": 1}), PROVENANCE)
    assert any(
        not np.array_equal(other.network.weights[name], value) for name, value in trained[0].network.weights.items()
    )


def test_the_model_stores_its_provenance(trained, compute_params):
    model = trained[0]
    assert model.provenance["hardware"] == {"device": "made up"}
    assert model.provenance["training"] == compute_params.model_dump()
    assert model.batch_size == BATCH_SIZE


def test_costs_of_other_samples_are_refused(frames):
    samples, pool, costs = frames
    costs = costs.assign(sample_id=["stranger", *costs["sample_id"][1:]])
    with pytest.raises(CostModelError, match="stranger"):
        compute_data(samples, pool, costs)


def test_too_few_usable_samples_are_refused(frames, compute_params):
    samples, pool, costs = frames
    failed = costs.assign(error=["broken"] * 75 + [None] * 5)
    with pytest.raises(CostModelError, match="5 usable samples are too few"):
        train_compute_model(samples, pool, failed, compute_params, PROVENANCE)


def test_a_diverging_loss_is_reported(compute_training, compute_params):
    split = split_samples(compute_training.sample_ids, 0.1, 0.2, 0)
    wild = compute_params.model_copy(update={"learning_rate": 0.99, "weight_decay": 1e30})
    with pytest.raises(CostModelError, match="lower learning_rate"):
        fit_compute(compute_training, split, wild, {})


def test_samples_of_several_batch_sizes_train_together(compute_training, compute_params):
    data = compute_training.take(range(40))
    mixed = [
        type(sample)(sample.sample_id, BATCH_SIZE * (1 + index % 2), sample.shards)
        for index, sample in enumerate(data.samples)
    ]
    data = ComputeData(tuple(mixed), data.costs, 0)
    short = compute_params.model_copy(update={"epochs": 2})
    model = fit_compute(data, split_samples(data.sample_ids, 0.1, 0.1, 0), short, {})
    assert model.batch_size in {512, 1024}


def test_a_launch_that_is_more_expensive_for_one_optimizer_is_paid_once(compute_training, compute_params, tables):
    extra_ms = np.array([2.0, 0.0])
    stateful = np.arange(len(compute_training.samples)) % 2 == 1
    samples = tuple(
        dataclasses.replace(sample, optimizer="rowwise_adagrad" if other else "sgd")
        for sample, other in zip(compute_training.samples, stateful, strict=True)
    )
    data = ComputeData(samples, compute_training.costs_ms + stateful[:, None] * extra_ms, 0)
    model = fit_compute(data, split_samples(data.sample_ids, 0.1, 0.2, 0), compute_params, {})
    sets = [make_shards(np.random.default_rng(count), tables, count) for count in (1, 2, 4, 8, 15)]
    apart = model.predict(sets, BATCH_SIZE, "rowwise_adagrad") - model.predict(sets, BATCH_SIZE, "sgd")
    assert apart[:, 0] == pytest.approx(2.0, abs=0.4)
