"""The step cost model of a modelled cluster agrees with the formulas of the lab."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.cost_models.modelled_step import modelled_step_model
from neuroshard_pipeline.cost_models.shipped import shipped_names
from neuroshard_pipeline.cost_models.step import PARTS, StepCostModel
from neuroshard_pipeline.lab.device import ModelledDevice, modelled_device
from neuroshard_pipeline.lab.network import NetworkParams, collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step_samples import step_samples
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.tables.step_work import QUANTITIES

DEVICE, NETWORK = modelled_device("h100"), network_preset("h100-ib400")


@pytest.fixture(scope="module")
def model() -> StepCostModel:
    """A model of one and of two hosts, with prices of few plans."""
    return modelled_step_model(DEVICE, NETWORK, (4, 16), 32, {"device": "cuda"})


@pytest.fixture(scope="module")
def small_hosts() -> tuple[NetworkParams, StepCostModel]:
    """Hosts of two ranks, and a model of one and of two of them."""
    network = NETWORK.model_copy(update={"gpus_per_host": 2})
    return network, modelled_step_model(DEVICE, network, (2, 4), 64, {"device": "cuda"})


def test_prices_describe_plans_that_they_were_not_fitted_to(small_hosts):
    network, model = small_hosts
    for world_size in (2, 4):
        samples = step_samples(DEVICE, network, world_size, 24, np.random.default_rng(99))
        for part in ("input_dist", "module"):
            predicted = samples.work @ model.prices_of(part, world_size)
            assert np.median(np.abs(predicted / samples.cost_ms[part] - 1)) < 0.3, (part, world_size)


def test_a_single_rank_pays_for_no_exchange_but_for_the_order_of_its_outputs(small_hosts):
    _, model = small_hosts
    alone, two = (dict(zip(QUANTITIES, model.prices_of("module", ranks), strict=True)) for ranks in (1, 2))
    assert not model.prices_of("input_dist", 1).any()
    assert alone["returned"] == alone["converted"] == 0 < min(two["returned"], two["converted"])
    assert alone["reordered"] == two["reordered"] > 0


def test_every_part_has_an_error_even_if_no_held_out_plan_has_the_part():
    """Of eight plans on three hosts of one rank, two are held out of the fit, and neither of the two has replicas."""
    network = NETWORK.model_copy(update={"gpus_per_host": 1})
    samples = step_samples(DEVICE, network, 3, 8, np.random.default_rng(3))
    assert not (samples.cost_ms["dense"][samples.plan % 4 == 0] > 0).any()
    few = modelled_step_model(DEVICE, network, (3,), 24, {"device": "cuda"})
    assert set(few.errors) == set(PARTS)
    assert all(0 < error < 1 for error in few.errors.values())


def test_reductions_cost_what_the_network_says(model):
    sizes = np.array([1e4, 3e6, 5e8])
    for collective in REDUCTIONS:
        for world_size, hosts, per_host in ((4, 1, None), (16, 2, 8)):
            expected = collective_us(collective, sizes, world_size, hosts, NETWORK) / 1e3
            assert model.reductions.predict_ms(collective, sizes, world_size, per_host) == pytest.approx(
                expected, rel=0.03
            )


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 1), (16, 1), (16, 2), (16, 4)])
def test_an_all_reduce_of_some_ranks_of_every_host_costs_what_the_network_says(model, ranks, per_host):
    """One rank of every host has the bandwidth of its own network card only."""
    sizes = np.array([1e4, 3e6, 5e8])
    expected = collective_us("all_reduce", sizes, ranks, -(-ranks // per_host), NETWORK) / 1e3
    predicted = model.reductions.predict_ms("all_reduce", sizes, ranks, per_host)
    assert predicted == pytest.approx(expected, rel=0.03)


def test_a_saved_model_says_that_it_is_modelled(model, tmp_path):
    model.save(tmp_path)
    loaded = StepCostModel.load(tmp_path)
    assert loaded.provenance["costs_are"] == {"prices": "modelled", "reductions": "modelled"}
    assert loaded.prices == {size: dict(of) for size, of in model.prices.items()}


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_step_cost_models_agree_with_the_present_lab(name):
    models = load_cost_models(name)
    hardware = models.compute.provenance["hardware"]
    network = NetworkParams(**{key: hardware["topology"][key] for key in NetworkParams.model_fields})
    samples = step_samples(ModelledDevice(**hardware["modelled_device"]), network, 8, 12, np.random.default_rng(7))
    for part in PARTS:
        paid = samples.cost_ms[part] > 0
        predicted = samples.work[paid] @ models.step.prices_of(part, 8)
        error = np.median(np.abs(predicted / samples.cost_ms[part][paid] - 1))
        assert error < 0.2, f"{part}: run `make shipped-models`"
