"""The topology model against hand-computed cases, published measurements and a message-by-message oracle."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import CommCampaign, describe_hardware
from neuroshard_pipeline.measurement.comm_bench import forward_splits
from neuroshard_pipeline.measurement.topology import TopologyParams, rank_costs_ms, topology_costs
from neuroshard_pipeline.tables.samples import CommSample

SEED = 0
# Round numbers: 1 GB/s inside a host is 1e6 bytes per ms; across hosts it is a tenth of that.
SIMPLE = TopologyParams(
    gpus_per_host=2,
    launch_us=100.0,
    intra_latency_us=20.0,
    intra_gb_per_s=1.0,
    intra_half_speed_bytes=1000.0,
    inter_latency_us=50.0,
    inter_gb_per_s=0.1,
    inter_half_speed_bytes=2000.0,
)
dims_and_skews = st.lists(st.tuples(st.integers(0, 60), st.floats(0, 20)), min_size=1, max_size=7)


def shipped() -> TopologyParams:
    return TopologyParams(**yaml.safe_load((ROOT / "conf/base/parameters_backends.yml").read_text())["topology"])


def costs(sample: CommSample, params: TopologyParams = SIMPLE) -> tuple[np.ndarray, np.ndarray]:
    frame = topology_costs([sample], params)
    return frame["forward_ms"].to_numpy(), frame["backward_ms"].to_numpy()


def oracle(sample: CommSample, params: TopologyParams, backward: bool) -> list[float]:
    """The costs, message by message, from the definition at the top of the module and the real collective's volumes."""
    ranks = range(sample.world_size)
    sent = [forward_splits(sample, rank)[0] for rank in ranks]
    message = {(i, j): 4 * (sent[j][i] if backward else sent[i][j]) for i in ranks for j in ranks if i != j}
    start = [0.0 if backward else skew for skew in sample.start_skew_ms]

    def level(i, j):
        inside = i // params.gpus_per_host == j // params.gpus_per_host
        prefix = "intra" if inside else "inter"
        values = params.model_dump()
        return (
            inside,
            values[f"{prefix}_latency_us"],
            values[f"{prefix}_gb_per_s"],
            values[f"{prefix}_half_speed_bytes"],
        )

    def port(rank, side, inside):
        total = 0.0
        for pair, size in message.items():
            its, _, rate, half = level(*pair)
            if pair[side] == rank and its == inside and size:
                total += (size + half) / rate / 1e6
        return total

    done = [start[rank] for rank in ranks]
    for (i, j), size in message.items():
        if size:
            inside, latency, _, _ = level(i, j)
            end = max(start[i], start[j]) + latency / 1e3 + max(port(i, 0, inside), port(j, 1, inside))
            done[i], done[j] = max(done[i], end), max(done[j], end)
    return [params.launch_us / 1e3 + done[rank] - start[rank] for rank in ranks]


def test_two_ranks_of_one_host_by_hand():
    # The messages have 5 samples: 4 * 5 * 100 = 2000 and 4 * 5 * 200 = 4000 bytes, plus the half-speed size of 1000.
    # Each rank sends one and receives the other; the larger one takes 5 us. Both ranks cost 100 + 20 + 5 us.
    forward, backward = costs(CommSample("pair", 10, (100, 200), (0.0, 0.0)))
    assert forward == pytest.approx([0.125, 0.125])
    assert backward == pytest.approx([0.125, 0.125])


def test_two_hosts_are_slower_by_hand():
    # The same volumes across hosts: (4000 + 2000) bytes at 1e5 bytes per ms are 60 us, after 50 us of latency.
    params = SIMPLE.model_copy(update={"gpus_per_host": 1})
    forward, _ = costs(CommSample("pair", 10, (100, 200), (0.0, 0.0)), params)
    assert forward == pytest.approx([0.21, 0.21])


def test_the_early_rank_waits_for_the_late_one_by_hand():
    forward, backward = costs(CommSample("late", 10, (100, 200), (0.0, 3.0)))
    assert forward == pytest.approx([3.125, 0.125])
    assert backward == pytest.approx([0.125, 0.125])


def test_a_rank_alone_and_ranks_without_columns_cost_the_launch():
    assert costs(CommSample("alone", 10, (100,), (0.0,)))[0] == pytest.approx([0.1])
    forward, backward = costs(CommSample("empty", 10, (0, 0, 0), (0.0, 1.0, 2.0)))
    assert forward == pytest.approx([0.1] * 3)
    assert backward == pytest.approx([0.1] * 3)


@given(dims_and_skews, st.integers(1, 300), st.integers(1, 4))
def test_it_is_what_its_definition_says(ranks, batch_size, gpus_per_host):
    sample = CommSample("any", batch_size, *(tuple(part) for part in zip(*ranks, strict=True)))
    params = SIMPLE.model_copy(update={"gpus_per_host": gpus_per_host})
    forward, backward = costs(sample, params)
    assert forward == pytest.approx(oracle(sample, params, backward=False))
    assert backward == pytest.approx(oracle(sample, params, backward=True))


@given(dims_and_skews, st.integers(1, 300), st.integers(0, 6), st.integers(1, 40), st.floats(0, 5))
def test_more_volume_and_later_ranks_never_end_the_collective_earlier(ranks, batch_size, which, more, later_ms):
    dims, skews = zip(*ranks, strict=True)
    which %= len(dims)
    end = [f + s for f, s in zip(costs(CommSample("a", batch_size, dims, skews))[0], skews, strict=True)]
    dims = tuple(dim + more * (rank == which) for rank, dim in enumerate(dims))
    skews = tuple(skew + later_ms * (rank == which) for rank, skew in enumerate(skews))
    again = [f + s for f, s in zip(costs(CommSample("b", batch_size, dims, skews))[0], skews, strict=True)]
    assert all(new >= old - 1e-9 for new, old in zip(again, end, strict=True))


@given(st.lists(st.integers(1, 60), min_size=4, max_size=4), st.integers(4, 300))
def test_two_hosts_are_slower_than_one(dims, batch_size):
    sample = CommSample("any", batch_size, tuple(dims), (0.0,) * 4)
    one = costs(sample, SIMPLE.model_copy(update={"gpus_per_host": 4}))
    two = costs(sample, SIMPLE)
    assert all((fast < slow).all() for fast, slow in zip(one, two, strict=True))


def test_bandwidth_saturates_with_message_size():
    """The rate rises with the message size and stays below the bandwidth; at the half-speed size it is half of it."""
    free = SIMPLE.model_copy(update={"launch_us": 0.0, "intra_latency_us": 0.0})
    sizes = 1000.0 * 2.0 ** np.arange(-5, 15)
    messages = np.zeros((len(sizes), 2, 2))
    messages[:, 0, 1] = sizes
    rate = sizes / rank_costs_ms(messages, np.zeros((len(sizes), 2)), free)[:, 0]
    assert (np.diff(rate) > 0).all()
    assert rate[-1] < 1e6
    assert rate[5] == pytest.approx(5e5)


def test_the_shipped_cluster_reproduces_the_published_all_to_all():
    # NVIDIA/nccl issue 2169: 500 MiB per rank on 4 H100, 1174 us.
    messages = np.full((1, 4, 4), 125 * 2.0**20)
    assert rank_costs_ms(messages, np.zeros((1, 4)), shipped())[0] * 1e3 == pytest.approx([1174] * 4, rel=0.01)


@pytest.mark.parametrize(("gpus", "published_gb_per_s"), [(16, 90), (32, 61)])
def test_the_shipped_cluster_is_near_the_published_dispatch_rates(gpus, published_gb_per_s):
    # deepseek-ai/DeepEP, which also counts bytes that stay on the host.
    messages = np.full((1, gpus, gpus), 2.0**27)
    seconds = rank_costs_ms(messages, np.zeros((1, gpus)), shipped())[0, 0] / 1e3
    assert gpus * 2.0**27 / seconds / 1e9 == pytest.approx(published_gb_per_s, rel=0.1)


def test_it_plugs_into_a_campaign_of_any_world_sizes(comm_params, comm_samples):
    samples = [*comm_samples(5), CommSample("large", 4096, (64,) * 48, (0.0,) * 48)]
    params = comm_params(backend="topology")
    assert list(CommCampaign(params, SEED).run(samples, {})) == []
    frame = CommCampaign(params, SEED, SIMPLE).measure(samples)
    assert list(frame) == ["sample_id", "rank", "forward_ms", "backward_ms", "spread_ms", "error"]
    assert [tuple(row) for row in frame[["sample_id", "rank"]].to_numpy()] == [
        (sample.sample_id, rank) for sample in samples for rank in range(sample.world_size)
    ]
    assert (frame[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert frame[["spread_ms", "error"]].isna().all(axis=None)
    assert frame.equals(CommCampaign(params, SEED, SIMPLE).measure(samples))
    assert list(CommCampaign(params, SEED, SIMPLE).measure([])) == list(frame)


def test_modelled_costs_are_called_modelled_and_have_no_noise_floor(compute_params, comm_params, comm_samples):
    params = comm_params(backend="topology")
    date, floor = CommCampaign(params, SEED).summary({}, comm_samples(3))
    assert date is None
    assert floor == {"samples": 0, **{part: {"median": None, "p90": None} for part in ("forward", "backward", "total")}}
    described = json.loads(json.dumps(describe_hardware(compute_params(), params, floor, floor, None, topology=SIMPLE)))
    assert described["comm_backend"] == "topology"
    assert described["comm_costs_are"] == "modelled"
    assert described["topology"] == SIMPLE.model_dump()


def test_without_a_cluster_it_is_refused(comm_params, comm_samples):
    with pytest.raises(MeasurementError, match="use gloo or nccl"):
        CommCampaign(comm_params(backend="topology"), SEED).measure(comm_samples(1))
