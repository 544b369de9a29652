"""The modelled network: hand-computed cases, limits that hold for every collective, and a message-by-message oracle."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_sheets import network_sheets
from hypothesis import given
from hypothesis import strategies as st
from lab.networks import SIMPLE, alltoall_oracle_ms
from published_collectives import bus_factor

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.network import COLLECTIVES, collective_us, rank_costs_ms
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.params import lab_values

PRESETS = list(lab_values()["networks"])
SIZES = 2.0 ** np.arange(3, 35)
collectives, presets = st.sampled_from(COLLECTIVES), st.sampled_from(PRESETS)
worlds = st.sampled_from([(2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (128, 16), (512, 64)])  # ranks, hosts
volumes = st.integers(2, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.sampled_from([0, 1, 900, 40_000, 3_000_000]), min_size=n, max_size=n), min_size=n, max_size=n
    )
)


def us(collective, size, ranks, hosts, params):
    return float(collective_us(collective, size, ranks, hosts, params))


def bus_gb_per_s(collective, size, ranks, hosts, params):
    return size * bus_factor(collective, ranks) / us(collective, size, ranks, hosts, params) / 1e3


def costs(messages, params=SIMPLE, start=None):
    messages = np.array(messages, dtype=float)
    start = np.zeros(len(messages)) if start is None else np.array(start, dtype=float)
    return rank_costs_ms(messages[None], start[None], params)[0]


@pytest.mark.parametrize(
    ("collective", "size", "ranks", "hosts", "expected"),
    [
        # Half of the buffer, 0.5e6 bytes: a ring of two GPUs reaches 2 / 2.5 of 1 GB/s, after 8 us of pipeline.
        ("all_gather", 1e6, 2, 1, 100 + 20 + 8 + 625),
        # The protocols with low latency send the 500 bytes at half the speed.
        ("reduce_scatter", 1e3, 2, 1, 100 + 20 + 2 * 0.625),
        # Twice the volume, but the pipeline fills only once. Below 8 GPUs, the switch does not reduce (NVLS).
        ("all_reduce", 1e6, 2, 1, 100 + 20 + 8 + 1250),
        # No ring, so the links reach their whole bandwidth: 0.5e6 bytes at 1 GB/s.
        ("alltoall", 1e6, 2, 1, 100 + 20 + 8 + 500),
        # Two hosts with one GPU each: the card of 0.1 GB/s decides. The latency of the hop almost doubles at this size.
        ("all_gather", 1e6, 2, 2, 100 + 50 * (1 + 1e6 / (1e6 + 8192)) + 30 + 5000),
        # 2 * 1/2 * 1e6 bytes per host; the tree fills its pipeline in 40 us, the ring in 2 * 30.
        ("all_reduce", 1e6, 2, 2, 100 + 50 * (1 + 1e6 / (1e6 + 8192)) + 40 + 10_000),
        # One message of 0.5e6 bytes at half of 0.1 GB/s.
        ("alltoall", 1e6, 2, 2, 100 + 50 + 10 + 10_000),
    ],
)
def test_two_ranks_by_hand(collective, size, ranks, hosts, expected):
    assert us(collective, size, ranks, hosts, SIMPLE) == pytest.approx(expected)


def test_the_switch_reduces_from_8_gpus_on():
    wide = SIMPLE.model_copy(update={"gpus_per_host": 8})
    times = us("all_reduce", 1e9, 8, 1, wide), 2 * us("all_gather", 1e9, 8, 1, wide)
    assert times[1] / times[0] == pytest.approx(1.5, rel=1e-3)
    assert us("all_reduce", 1e9, 7, 1, wide) == pytest.approx(2 * us("all_gather", 1e9, 7, 1, wide), rel=1e-3)


@given(collectives, presets)
def test_one_rank_costs_nothing(collective, name):
    assert us(collective, 1e9, 1, 1, network_preset(name)) == 0
    assert costs([[5.0]]).tolist() == [0]


@given(collectives, presets, worlds)
def test_larger_buffers_take_longer(collective, name, world):
    times = collective_us(collective, SIZES, *world, network_preset(name))
    assert (np.diff(times) > 0).all()


@given(collectives, presets, worlds)
def test_bandwidth_stays_below_the_data_sheet(collective, name, world):
    """The links of a GPU limit every collective; across hosts, so do the cards of a host.

    An all_reduce may exceed the links by the factor of NVLS, and the cards by a factor of 2, because it may use trees.
    An alltoall stays below twice the bandwidth of one card: on two hosts, half of its bytes do not leave the host.
    """
    ranks, hosts = world
    params, sheets = network_preset(name), network_sheets()
    link = sheets.gpus[sheets.clusters[name].gpu].link_gb_per_s
    bus = bus_gb_per_s(collective, 2.0**40, ranks, hosts, params)
    tree = 2.0 if collective == "all_reduce" else 1.0
    assert bus < link * (params.host.switch_reduction if collective == "all_reduce" else 1.0)
    if hosts > 1:
        card = sheets.clusters[name].card_gb_per_s
        assert bus < tree * card * (2.0 if collective == "alltoall" else ranks / hosts)


@given(collectives, presets, st.sampled_from(SIZES.tolist()))
def test_more_hosts_never_make_the_same_ranks_faster(collective, name, size):
    times = collective_us(collective, size, 8, [1, 2, 4, 8], network_preset(name))
    assert (np.diff(times) > 0).all()


@given(volumes, st.integers(1, 4), st.data())
def test_uneven_volumes_are_what_the_definition_says(messages, gpus_per_host, data):
    params = SIMPLE.model_copy(update={"gpus_per_host": gpus_per_host})
    start = data.draw(st.lists(st.floats(0, 20), min_size=len(messages), max_size=len(messages)))
    assert costs(messages, params, start) == pytest.approx(alltoall_oracle_ms(messages, start, params))


@given(presets, st.sampled_from([2, 4, 8, 16, 24, 32]), st.sampled_from(SIZES.tolist()))
def test_even_volumes_cost_what_the_symmetric_formula_says(name, ranks, size):
    params = network_preset(name)
    hosts = params.hosts_of(ranks)
    if ranks % hosts == 0:
        even = costs(np.full((ranks, ranks), size / ranks), params)
        assert even * 1e3 == pytest.approx(np.full(ranks, us("alltoall", size, ranks, hosts, params)))


@given(volumes, st.randoms(use_true_random=False))
def test_ranks_of_one_host_may_be_renamed(messages, random):
    """Costs move with the ranks if ranks swap names within hosts, or whole hosts do."""
    ranks = len(messages) - len(messages) % 2
    hosts = [[2 * host, 2 * host + 1] for host in range(ranks // 2)]
    random.shuffle(hosts)
    order = [rank for host in hosts for rank in random.sample(host, 2)]
    messages = np.array(messages, dtype=float)[:ranks, :ranks]
    assert costs(messages[np.ix_(order, order)]) == pytest.approx(costs(messages)[order])


@given(volumes)
def test_uneven_volumes_take_at_least_as_long_as_even_ones_of_the_same_sum(messages):
    """The busiest rank of one host ends no earlier than all ranks would if each sent the mean to each other rank."""
    messages = np.array(messages, dtype=float)
    np.fill_diagonal(messages, 0)
    ranks = len(messages)
    host = SIMPLE.host.model_copy(update={"rank_us": 0.0, "fill_us": 0.0})  # a rank may have fewer peers than ranks - 1
    params = SIMPLE.model_copy(update={"gpus_per_host": ranks, "host": host})
    even = np.full_like(messages, messages.sum() / (ranks * (ranks - 1)))
    assert costs(messages, params).max() >= costs(even, params).max() - 1e-12


def test_early_ranks_wait_and_ranks_without_volume_cost_the_launch():
    waiting = costs([[0, 0, 0, 0], [0, 0, 8, 0], [0, 8, 0, 0], [0, 0, 0, 0]], start=[0.0, 0.0, 3.0, 0.0])
    assert waiting[0] == waiting[3] == pytest.approx(0.1)
    assert waiting[1] == pytest.approx(waiting[2] + 3.0)


def test_small_collectives_of_many_ranks_take_far_less_than_the_sum_of_latencies():
    assert us("alltoall", 1024, 128, 16, network_preset("h100-ib400")) < 600
    assert us("all_reduce", 1024, 128, 16, network_preset("h100-ib400")) < 150


def test_8_h100_reach_the_published_bandwidths():
    """xxrjun/nccl-tests-cluster, one host, 1 GiB: 345, 343, 332 and 470 GB/s; ten hosts: alltoall 50 GB/s."""
    params = network_preset("h100-ib400")
    for collective, published in zip(
        ("all_gather", "reduce_scatter", "alltoall", "all_reduce"), (345, 343, 332, 470), strict=True
    ):
        assert bus_gb_per_s(collective, 2.0**30, 8, 1, params) == pytest.approx(published, rel=0.1)
    assert bus_gb_per_s("alltoall", 2.0**30, 80, 10, params) == pytest.approx(50.2, rel=0.1)


def test_an_unknown_preset_is_refused():
    message = r"'h100-efs' is neither ethernet-<Gbit/s> nor one of h100-ib400.*fit-network.*did you mean 'h100-efa'"
    with pytest.raises(MeasurementError, match=message):
        network_preset("h100-efs")
