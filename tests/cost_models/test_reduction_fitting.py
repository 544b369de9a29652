"""Costs of reductions, fitted to samples of a modelled cluster, with and without noise."""

import math

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.augment.reduction_draws import ReductionSampleParams, reduction_samples
from neuroshard_pipeline.cost_models.reduction_fitting import fit_reductions
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.tables.samples import REDUCTIONS

CLUSTER = network_preset("h100-ib400")


def grid(**changes):
    values = {"world_sizes": (2, 4, 8, 16, 32), "ranks_per_host": (8,), "num_sizes": 15}
    return reduction_samples(ReductionSampleParams(**values | {"min_bytes": 4096, "max_bytes": 2**30} | changes))


def modelled(samples, noise=0.0, seed=0):
    """Costs of the lab, multiplied by log-normal noise."""
    columns = ("collective", "size_bytes", "world_size", "hosts")
    rows = zip(*(samples[name] for name in columns), strict=True)
    cost_ms = np.array([float(collective_us(*row, CLUSTER)) for row in rows]) / 1e3
    factor = np.exp(noise * np.random.default_rng(seed).standard_normal(len(samples)))
    return pd.DataFrame(
        {"sample_id": samples["sample_id"], "cost_ms": cost_ms * factor, "spread_ms": np.nan, "error": None}
    )


def test_measured_sizes_are_predicted_exactly_and_held_out_sizes_closely():
    samples = grid()
    costs = modelled(samples)
    model, metrics = fit_reductions(samples, costs)
    for row, cost_ms in zip(samples.itertuples(), costs["cost_ms"], strict=True):
        per_host = row.world_size // row.hosts
        assert model.predict_ms(row.collective, row.size_bytes, row.world_size, per_host) == pytest.approx(cost_ms)
    assert set(metrics) == set(REDUCTIONS)
    for collective in REDUCTIONS:
        assert metrics[collective]["mape"] < 0.03
        assert metrics[collective]["n_test"] == 5 * 7
        assert 0 < model.log_error[collective] < 0.15


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_intervals_contain_nine_tenths_of_new_measurements_and_widen_with_the_noise(noise):
    samples = grid(num_sizes=25)
    model, _ = fit_reductions(samples, modelled(samples, noise))
    again = modelled(samples, noise, seed=1)["cost_ms"].to_numpy()
    bounds = np.array(
        [
            model.interval_ms(row.collective, row.size_bytes, row.world_size, row.world_size // row.hosts)
            for row in samples.itertuples()
        ]
    )
    inside = np.mean((bounds[:, 0] <= again) & (again <= bounds[:, 1]))
    assert 0.85 <= inside <= 0.99
    assert all(noise < error < 5 * noise for error in model.log_error.values())


def test_noise_leaves_the_costs_monotone_and_their_geometric_mean_as_measured():
    samples = grid()
    costs = modelled(samples, noise=1.0)
    model, _ = fit_reductions(samples, costs)
    for (collective, world_size), rows in samples.merge(costs).groupby(["collective", "world_size"]):
        predicted = model.predict_ms(collective, rows["size_bytes"], world_size, 8)
        assert (np.diff(predicted) >= 0).all()
        assert np.log(predicted).sum() == pytest.approx(np.log(rows["cost_ms"]).sum())


def test_the_error_between_groups_is_known_from_three_groups_on():
    samples = grid(world_sizes=(2, 8))
    model, metrics = fit_reductions(samples, modelled(samples))
    assert metrics["all_reduce"]["error_per_doubling"] is None
    assert model.log_error_per_doubling["all_reduce"] == math.log(2)
    more = grid(world_sizes=(2, 4, 8))
    model, metrics = fit_reductions(more, modelled(more))
    between, truth = model.predict_ms("all_reduce", 2**20, 6), collective_us("all_reduce", 2**20, 6, 1, CLUSTER) / 1e3
    assert abs(between / truth - 1) < metrics["all_reduce"]["error_per_doubling"]


def test_failed_samples_are_left_out_and_too_few_are_refused():
    samples = grid()
    costs = modelled(samples)
    costs.loc[samples["size_bytes"] > 2**28, ["cost_ms", "error"]] = [np.nan, "out of memory"]
    model, _ = fit_reductions(samples, costs)
    assert model.predict_ms("all_gather", 2**30, 8) == pytest.approx(
        float(collective_us("all_gather", 2**30, 8, 1, CLUSTER)) / 1e3, rel=0.05
    )
    costs.loc[samples["size_bytes"] > 10_000, "error"] = "out of memory"
    with pytest.raises(CostModelError, match=r"reduce_scatter on 2 ranks has 2 usable sizes.*num_sizes"):
        fit_reductions(samples, costs)


def test_a_collective_without_any_usable_sample_is_refused():
    samples = grid()
    costs = modelled(samples)
    costs.loc[samples["collective"] == "all_gather", ["cost_ms", "error"]] = [np.nan, "not supported"]
    with pytest.raises(CostModelError, match=r"all_gather has no usable size.*error column of measure.reduction_costs"):
        fit_reductions(samples, costs)
