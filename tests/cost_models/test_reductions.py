"""Costs of reductions: invariants, and a comparison with the formulas of the modelled network that made the curves."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts, group_of
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.tables.samples import REDUCTIONS

CLUSTER = network_preset("h100-ib400")
SIZES = np.geomspace(4096, 2**32, 21)
GROUPS = [Group(2, 1), Group(4, 1), Group(8, 1), Group(16, 2), Group(32, 4), Group(64, 8), Group(128, 16), Group(4, 4)]
ANY_SIZE = st.floats(0, 2**36)


def modelled_ms(collective, sizes, group):
    return collective_us(collective, sizes, group.world_size, group.hosts, CLUSTER) / 1e3


def lab_costs(groups=GROUPS, sizes=SIZES):
    curves = {name: {group: Curve(sizes, modelled_ms(name, sizes, group)) for group in groups} for name in REDUCTIONS}
    return ReductionCosts(curves, dict.fromkeys(REDUCTIONS, 0.1), dict.fromkeys(REDUCTIONS, 0.2))


@st.composite
def measured_costs(draw):
    """Costs of all_reduce on one host, for one to four world sizes; the cost never falls with the size."""
    worlds = draw(st.lists(st.integers(2, 64), min_size=1, max_size=4, unique=True))
    sizes = np.array(sorted(draw(st.lists(st.integers(1, 2**30), min_size=2, max_size=8, unique=True))), dtype=float)
    costs = st.lists(st.floats(1e-3, 1e3), min_size=len(sizes), max_size=len(sizes))
    curves = {Group(world, 1): Curve(sizes, np.sort(draw(costs))) for world in worlds}
    return ReductionCosts({"all_reduce": curves}, {"all_reduce": 0.1}, {"all_reduce": 0.2})


@given(measured_costs(), st.lists(ANY_SIZE, min_size=2, max_size=20), st.integers(1, 200))
def test_costs_never_fall_with_the_size_and_are_never_negative(model, sizes, world_size):
    costs = model.predict_ms("all_reduce", np.sort(sizes), world_size)
    low, high = np.moveaxis(model.interval_ms("all_reduce", np.sort(sizes), world_size), -1, 0)
    assert (costs >= 0).all()
    assert np.isfinite(costs).all()
    assert (np.diff(costs) >= -1e-9 * costs[1:]).all()
    assert (low <= costs).all()
    assert (costs <= high).all()


@given(measured_costs())
def test_measured_points_are_predicted_exactly(model):
    for group, curve in model.curves["all_reduce"].items():
        predicted = model.predict_ms("all_reduce", curve.size_bytes, group.world_size)
        np.testing.assert_allclose(predicted, curve.cost_ms, rtol=1e-12)


@given(measured_costs(), st.integers(2, 64))
def test_at_measured_sizes_the_cost_of_a_group_lies_between_those_of_its_measured_neighbours(model, world_size):
    curves = model.curves["all_reduce"]
    worlds = sorted(group.world_size for group in curves)
    if worlds[0] < world_size < worlds[-1]:
        below = max(world for world in worlds if world <= world_size)
        above = min(world for world in worlds if world >= world_size)
        sizes = curves[Group(below, 1)].size_bytes
        ends = [model.predict_ms("all_reduce", sizes, world) for world in (below, above)]
        costs = model.predict_ms("all_reduce", sizes, world_size)
        assert (costs >= np.minimum(*ends) * (1 - 1e-9)).all()
        assert (costs <= np.maximum(*ends) * (1 + 1e-9)).all()


@given(measured_costs(), ANY_SIZE)
def test_no_bytes_or_a_single_rank_cost_nothing(model, size):
    assert model.predict_ms("all_reduce", 0, 8) == 0
    assert model.predict_ms("all_reduce", size, 1) == 0
    assert model.interval_ms("all_reduce", size, 1).tolist() == [0, 0]


@given(measured_costs(), st.lists(ANY_SIZE, max_size=5), st.integers(1, 100))
def test_json_keeps_every_interval(model, sizes, world_size):
    again = ReductionCosts.from_json(json.loads(json.dumps(model.to_json())))
    np.testing.assert_array_equal(
        again.interval_ms("all_reduce", sizes, world_size), model.interval_ms("all_reduce", sizes, world_size)
    )


@pytest.mark.parametrize("collective", REDUCTIONS)
@pytest.mark.parametrize("group", [Group(2, 1), Group(8, 1), Group(16, 2), Group(24, 3), Group(128, 16), Group(4, 4)])
def test_predictions_between_and_beyond_the_grid_follow_the_formula(collective, group):
    sizes = np.geomspace(SIZES[0], 64 * SIZES[-1], 100)
    ranks_per_host = group.world_size // group.hosts
    predicted = lab_costs().predict_ms(collective, sizes, group.world_size, ranks_per_host)
    np.testing.assert_allclose(predicted, modelled_ms(collective, sizes, group), rtol=0.15)


@pytest.mark.parametrize("collective", REDUCTIONS)
def test_groups_inside_a_host_are_cheaper_than_groups_across_hosts(collective):
    model = lab_costs()
    sizes = np.geomspace(1, 2**34, 50)
    assert (model.predict_ms(collective, sizes, 4, 8) < model.predict_ms(collective, sizes, 4, 1)).all()


def test_intervals_widen_with_the_distance_from_what_was_measured():
    model = lab_costs()

    def factor(size, world_size, ranks_per_host):
        low, high = model.interval_ms("all_reduce", size, world_size, ranks_per_host)
        return high / low

    assert factor(2**20, 16, 8) < factor(2**20, 24, 8) < factor(2**20, 256, 8) < factor(2**20, 1024, 8)
    assert factor(2**20, 16, 8) < factor(2**40, 16, 8)
    assert factor(2**20, 16, 8) < factor(2**20, 16, 4)


def test_ranks_fill_hosts_in_order():
    assert group_of(8, None) == Group(8, 1)
    assert group_of(6, 8) == Group(6, 1)
    assert group_of(17, 8) == Group(17, 3)


def test_sizes_that_are_no_sizes_and_unknown_collectives_are_refused():
    model = lab_costs()
    for size in (-1.0, np.nan, np.inf):
        with pytest.raises(CostModelError, match="size_bytes"):
            model.predict_ms("all_reduce", [1.0, size], 2)
    with pytest.raises(CostModelError, match=r"all_gather.*pretrain"):
        ReductionCosts({}, {}, {}).predict_ms("all_gather", 1, 2)
    with pytest.raises(CostModelError, match=r"'log_error' is missing.*pretrain"):
        ReductionCosts.from_json({"curves": []})
