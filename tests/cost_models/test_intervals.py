import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels, load_cost_models
from neuroshard_pipeline.cost_models.calibration import Predictions, calibrate, conformal_quantile, laplace_scale
from neuroshard_pipeline.cost_models.intervals import Calibration, coverage, relative_width
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.measurement.topology import topology_costs
from neuroshard_pipeline.tables.samples import CommSample
from neuroshard_pipeline.tables.table import Shard

from .machine import BATCH_SIZE, make_comm_sample, make_shards, true_comm_ms, true_compute_ms

positive = st.floats(1e-3, 1e3)
share = st.floats(0, 3)


@pytest.fixture(scope="module")
def calibration():
    return Calibration(
        np.array([-3.0, -0.2, 0.3]), np.array([2.3]), np.array([0.0, 0.0]), np.array([1.0, 2.0]), np.array([0.1, 10.0])
    )


@given(cost=positive, spread=share, overshoot=share, more=st.floats(0.01, 3))
def test_an_interval_contains_its_prediction_and_widens(calibration, cost, spread, overshoot, more):
    low, high = calibration.interval(np.array(cost), np.array(spread), np.array(overshoot))
    assert 0 < low < cost < high
    assert low * high == pytest.approx(cost**2)
    for wider in ((spread + more, overshoot), (spread, overshoot + more)):
        other = calibration.interval(np.array(cost), *map(np.array, wider))
        assert other[0] < low
        assert other[1] > high


def test_intervals_widen_beyond_all_training_costs(calibration):
    costs = np.array([10.0, 20.0, 40.0])
    ratio = np.divide(*calibration.interval(costs, np.zeros(3), np.zeros(3)).T)
    assert ratio[0] > ratio[1] > ratio[2]


def test_overshoot_is_the_farthest_distance_from_the_training_range(calibration):
    context = np.array([[0.5, 1.0], [0.0, 2.0], [-0.3, 1.0], [1.1, 2.7]])
    np.testing.assert_allclose(calibration.overshoot(context), [0, 0, 0.3, 0.7])


def drawn(rng, count):
    """Measured costs, and predictions of members that spread as far as they err; expensive samples have less error."""
    truth = np.exp(rng.normal(size=count))
    scale = 0.05 * truth**-0.5
    members = truth * np.exp(scale * rng.normal(size=(4, count)))
    return Predictions.of(truth * np.exp(scale * rng.laplace(size=count)), members)


@pytest.mark.parametrize("seed", range(3))
def test_calibrated_intervals_cover_new_samples_of_every_size(seed):
    rng = np.random.default_rng(seed)
    made = calibrate(drawn(rng, 1000), drawn(rng, 1000), np.zeros((5, 1)))
    new = drawn(rng, 4000)
    bounds = made.interval(new.predicted, new.spread, np.zeros(4000))
    cheap = new.predicted < np.median(new.predicted)
    assert coverage(new.measured, bounds) == pytest.approx(0.9, abs=0.03)
    assert coverage(new.measured[cheap], bounds[cheap]) == pytest.approx(0.9, abs=0.05)
    assert relative_width(new.predicted[cheap], bounds[cheap]) > 1.5 * relative_width(
        new.predicted[~cheap], bounds[~cheap]
    )


def test_the_scale_recovers_known_coefficients():
    rng = np.random.default_rng(0)
    terms = np.column_stack([np.ones(20_000), rng.normal(size=(20_000, 2))])
    error = np.exp(terms @ [-3.0, 0.4, 0.2]) * rng.exponential(size=20_000)
    np.testing.assert_allclose(laplace_scale(terms, error), [-3.0, 0.4, 0.2], atol=0.05)


def test_more_spread_never_narrows_an_interval():
    rng = np.random.default_rng(1)
    terms = np.column_stack([np.ones(500), rng.normal(size=(500, 2))])
    error = np.exp(terms @ [-3.0, 0.0, -0.5]) * rng.exponential(size=500)
    assert laplace_scale(terms, error)[2] == pytest.approx(0)


def test_the_scale_grows_at_most_in_proportion_to_the_spread():
    rng = np.random.default_rng(2)
    terms = np.column_stack([np.ones(2000), rng.normal(size=(2000, 2))])
    error = np.exp(terms @ [-3.0, 0.4, 2.0]) * rng.exponential(size=2000)
    found = laplace_scale(terms, error)
    assert found[2] == pytest.approx(1.0)
    assert found[1] == pytest.approx(0.4, abs=0.2)


def test_a_single_member_gets_no_coefficient_for_its_spread():
    rng = np.random.default_rng(0)
    terms = np.column_stack([np.ones(40), rng.normal(size=40), np.full(40, np.log(1e-3))])
    coefficients = laplace_scale(terms, np.abs(rng.laplace(size=40)))
    assert coefficients[2] == 0
    assert np.isfinite(coefficients).all()


@pytest.mark.parametrize("seed", range(20))
def test_intervals_of_a_handful_of_wild_samples_are_finite(seed):
    """Nearly equal costs with errors of any size leave the slopes of the scale undetermined."""
    rng = np.random.default_rng(seed)

    def wild(count):
        costs = np.exp(rng.normal(size=(2, count)) * 0.01)
        return Predictions.of(costs[0] * np.exp(3 * rng.laplace(size=count)), costs[: 1 + seed % 2])

    made = calibrate(wild(45), wild(5), np.zeros((3, 1)))
    asked = np.exp(np.linspace(-9, 9, 50))
    low, high = made.interval(asked, np.linspace(0, 1, 50), np.linspace(0, 1e4, 50)).T
    assert (low <= asked).all()
    assert (high >= asked).all()
    assert np.isfinite(high**2).all()


def test_the_conformal_quantile_counts_the_new_sample_too():
    assert conformal_quantile(np.arange(1.0, 20.0)) == 18  # ceil(20 * 0.9) of 19
    assert conformal_quantile(np.arange(1.0, 5.0)) == 4


def test_compute_intervals_cover_fresh_samples(compute_model, tables):
    rng = np.random.default_rng(11)
    samples = [make_shards(rng, tables, int(rng.integers(1, 16))) for _ in range(200)]
    truth = np.array([true_compute_ms(shards, BATCH_SIZE).sum() * rng.normal(1, 0.01) for shards in samples])
    bounds = compute_model.interval(samples, BATCH_SIZE)
    assert 0.8 <= coverage(truth, bounds) <= 1.0
    assert relative_width(truth, bounds) < 0.3


def test_costs_and_intervals_come_from_the_same_sums(compute_model, tables):
    model = compute_model
    embeddings = model.shard_embeddings([Shard(table, 0, 16) for table in tables], BATCH_SIZE)
    sums = np.cumsum(embeddings, axis=0).reshape(4, -1, embeddings.shape[1])
    costs, bounds = model.costs_from_sums(sums, BATCH_SIZE), model.interval_from_sums(sums, BATCH_SIZE)
    assert bounds.shape == (4, len(tables) // 4, 2)
    total = costs.sum(axis=-1)
    assert np.all((bounds[..., 0] <= total) & (total <= bounds[..., 1]))


@pytest.mark.parametrize("beyond", ["rows", "batch"])
def test_compute_intervals_widen_outside_the_training_range(compute_model, tables, beyond):
    model = compute_model
    table = tables[0]
    widths = []
    for factor in (1, 32, 1024):
        rows = table.num_embeddings * (factor if beyond == "rows" else 1)
        batch = BATCH_SIZE * (factor if beyond == "batch" else 1)
        shards = [Shard(dataclasses.replace(table, num_embeddings=rows), 0, 16)]
        low, high = model.interval([shards], batch)[0]
        widths.append(high / low)
    assert widths[0] < widths[1] < widths[2]


def test_a_rank_without_shards_has_an_interval_from_zero_to_zero(compute_model, comm_model, tables):
    models = CostModels(compute_model, comm_model)
    (low, high), none = models.compute.interval([[Shard(tables[0], 0, 16)], []], BATCH_SIZE)
    assert 0 < low < sum(models.compute_ms([Shard(tables[0], 0, 16)], BATCH_SIZE)) < high
    assert none.tolist() == [0, 0]


def test_comm_intervals_cover_fresh_collectives_and_widen(comm_model):
    model = comm_model
    rng = np.random.default_rng(12)
    samples = [make_comm_sample(rng, index, 4) for index in range(60)]
    truth = np.concatenate([true_comm_ms(sample) for sample in samples])
    arguments = [(sample.dim_sums, sample.start_skew_ms, BATCH_SIZE) for sample in samples]
    forward = np.concatenate([model.forward_interval_ms(*each) for each in arguments])
    backward = np.concatenate([model.backward_interval_ms(dims, batch) for dims, _, batch in arguments])
    assert coverage(truth[:, 0], forward) > 0.75
    assert coverage(truth[:, 1], backward) > 0.75
    dims = np.array(samples[0].dim_sums)
    grid = model.backward_interval_ms(np.stack([dims, 50 * dims]), BATCH_SIZE)
    assert grid.shape == (2, 4, 2)
    assert np.all(grid[1, :, 1] / grid[1, :, 0] > 1.2 * grid[0, :, 1] / grid[0, :, 0])


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_intervals_of_ranks_without_columns_contain_the_modelled_costs_and_are_not_absurd(name):
    """Ranks without columns are rare among training samples, and the members disagree more about them."""
    model, rng = load_cost_models(name).comm, np.random.default_rng(5)
    network = {key: of for key, of in model.provenance["hardware"]["topology"].items() if key != "preset"}
    columns = rng.choice([8, 16, 32, 64, 128, 240], size=(60, 1))
    dims = np.where(rng.random((60, 16)) < rng.uniform(0.1, 0.9, size=(60, 1)), columns, 0)
    dims[:, 0] = columns[:, 0]
    samples = [CommSample(f"s{at:02}", 32768, tuple(row), (0.0,) * 16) for at, row in enumerate(dims.tolist())]
    truth = topology_costs(samples, NetworkParams(**network))["backward_ms"].to_numpy().reshape(dims.shape)
    bounds = model.backward_interval_ms(dims, 32768)[dims == 0]
    assert coverage(truth[dims == 0], bounds) > 0.9
    assert (bounds[:, 1] / bounds[:, 0]).max() < 20


def test_loaded_models_have_the_same_intervals(compute_model, comm_model, tables, tmp_path):
    compute, comm = compute_model, comm_model
    compute.save(tmp_path / "compute")
    comm.save(tmp_path / "comm")
    shards = [Shard(table, 0, 8) for table in tables[:5]]
    again = ComputeCostModel.load(tmp_path / "compute")
    np.testing.assert_array_equal(again.interval([shards], 512), compute.interval([shards], 512))
    collective = ((64, 64, 32, 8), (0.0, 0.1, 1.0, 0.0), 512)
    again = CommCostModel.load(tmp_path / "comm")
    np.testing.assert_array_equal(again.forward_interval_ms(*collective), comm.forward_interval_ms(*collective))


def test_a_model_without_calibration_refuses_intervals_and_saving(compute_model, comm_model, tables, tmp_path):
    bare_network = dataclasses.replace(compute_model.network, calibration=None)
    compute = dataclasses.replace(compute_model, network=bare_network)
    sums = compute.shard_embeddings([Shard(tables[0], 0, 8)], BATCH_SIZE)
    assert np.all(compute.costs_from_sums(sums, BATCH_SIZE) > 0)
    for refused in (lambda: compute.interval_from_sums(sums, BATCH_SIZE), lambda: compute.save(tmp_path)):
        with pytest.raises(CostModelError, match="no calibrated intervals"):
            refused()
    comm = comm_model
    bare = {name: dataclasses.replace(network, calibration=None) for name, network in comm.networks.items()}
    with pytest.raises(CostModelError, match="no calibrated intervals"):
        dataclasses.replace(comm, networks=bare).backward_interval_ms((8, 8), BATCH_SIZE)
