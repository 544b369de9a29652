"""The communication backend `topology` gives samples the costs of a modelled cluster, and runs in campaigns."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.networks import SIMPLE, alltoall_oracle_ms
from pydantic import ValidationError

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.network import NetworkParams, collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.measurement import CommCampaign, describe_hardware, hardware
from neuroshard_pipeline.measurement.comm_bench import forward_splits
from neuroshard_pipeline.measurement.topology import TopologyParams, topology_costs
from neuroshard_pipeline.tables.samples import REDUCTIONS, CommSample, ReductionSample

SEED = 0
TOPOLOGY = TopologyParams(ranks_per_host=None, preset=None, cluster=SIMPLE)
dims_and_skews = st.lists(st.tuples(st.integers(0, 60), st.floats(0, 20)), min_size=1, max_size=7)


def costs(sample: CommSample, params: NetworkParams = SIMPLE) -> tuple[np.ndarray, np.ndarray]:
    frame = topology_costs([sample], params)
    return frame["forward_ms"].to_numpy(), frame["backward_ms"].to_numpy()


def message_bytes(sample: CommSample, backward: bool) -> np.ndarray:
    """(W, W) bytes that the real collective sends from the row's rank to the column's rank."""
    sent = 4 * np.array([forward_splits(sample, rank)[0] for rank in range(sample.world_size)])
    return sent.T if backward else sent


@given(dims_and_skews, st.integers(1, 300), st.integers(1, 4))
def test_costs_are_those_of_the_real_volumes(ranks, batch_size, gpus_per_host):
    sample = CommSample("any", batch_size, *(tuple(part) for part in zip(*ranks, strict=True)))
    params = SIMPLE.model_copy(update={"gpus_per_host": gpus_per_host})
    forward, backward = costs(sample, params)
    none = (0.0,) * sample.world_size
    assert forward == pytest.approx(alltoall_oracle_ms(message_bytes(sample, False), sample.start_skew_ms, params))
    assert backward == pytest.approx(alltoall_oracle_ms(message_bytes(sample, True), none, params))


@given(dims_and_skews, st.integers(1, 300), st.integers(0, 6), st.integers(1, 40), st.floats(0, 5))
def test_more_volume_and_later_ranks_never_end_the_collective_earlier(ranks, batch_size, which, more, later_ms):
    dims, skews = zip(*ranks, strict=True)
    which %= len(dims)
    end = [f + s for f, s in zip(costs(CommSample("a", batch_size, dims, skews))[0], skews, strict=True)]
    dims = tuple(dim + more * (rank == which) for rank, dim in enumerate(dims))
    skews = tuple(skew + later_ms * (rank == which) for rank, skew in enumerate(skews))
    again = [f + s for f, s in zip(costs(CommSample("b", batch_size, dims, skews))[0], skews, strict=True)]
    assert all(new >= old - 1e-9 for new, old in zip(again, end, strict=True))


def test_reductions_cost_what_the_formula_says(comm_params):
    campaign = CommCampaign(
        comm_params(backend="topology"), SEED, TopologyParams(ranks_per_host=None, preset="h100-ib400", cluster=None)
    )
    groups = ((8, 1), (8, 8), (16, 2))
    grid = [
        ReductionSample(f"{name}-{ranks}-{hosts}", name, 2**20, ranks, hosts)
        for ranks, hosts in groups
        for name in REDUCTIONS
    ]
    assert list(campaign.run(grid, {})) == []
    frame = campaign.reduction_costs({}, grid)
    network = network_preset("h100-ib400")
    expected = [collective_us(s.collective, s.size_bytes, s.world_size, s.hosts, network) / 1e3 for s in grid]
    assert frame["cost_ms"].tolist() == pytest.approx(expected)
    assert frame["error"].isna().all()


def test_it_plugs_into_a_campaign_of_any_world_sizes(comm_params, comm_samples):
    samples = [*comm_samples(5), CommSample("large", 4096, (64,) * 48, (0.0,) * 48)]
    params = comm_params(backend="topology")
    assert list(CommCampaign(params, SEED).run(samples, {})) == []
    frame = CommCampaign(params, SEED, TOPOLOGY).measure(samples)
    assert list(frame) == ["sample_id", "rank", "forward_ms", "backward_ms", "spread_ms", "error"]
    assert [tuple(row) for row in frame[["sample_id", "rank"]].to_numpy()] == [
        (sample.sample_id, rank) for sample in samples for rank in range(sample.world_size)
    ]
    assert (frame[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert frame[["spread_ms", "error"]].isna().all(axis=None)
    assert frame.equals(CommCampaign(params, SEED, TOPOLOGY).measure(samples))
    assert list(CommCampaign(params, SEED, TOPOLOGY).measure([])) == list(frame)


def test_modelled_costs_are_called_modelled_and_have_no_noise_floor(
    compute_params, comm_params, comm_samples, monkeypatch
):
    monkeypatch.setattr(hardware, "_COPIED_BYTES", 2**24)
    params = comm_params(backend="topology")
    summary = CommCampaign(params, SEED).summary({}, comm_samples(3))
    date, floor, _ = summary
    assert date is None
    assert floor == {"samples": 0, **{part: {"median": None, "p90": None} for part in ("forward", "backward", "total")}}
    topology = TopologyParams(ranks_per_host=None, preset="a100-efa", cluster=None)
    described = json.loads(json.dumps(describe_hardware(compute_params(), params, summary, summary, topology=topology)))
    assert described["comm_backend"] == "topology"
    assert described["comm_costs_are"] == "modelled"
    assert described["topology"] == {"preset": "a100-efa", **network_preset("a100-efa").model_dump()}


def test_without_a_cluster_it_is_refused(comm_params, comm_samples):
    with pytest.raises(MeasurementError, match="use gloo or nccl"):
        CommCampaign(comm_params(backend="topology"), SEED).measure(comm_samples(1))


def test_a_cluster_is_a_preset_or_numbers():
    assert TOPOLOGY.network == SIMPLE
    assert TopologyParams(ranks_per_host=None, preset="h100-efa", cluster=None).network == network_preset("h100-efa")
    with pytest.raises(ValidationError, match=r"fit-network.*did you mean 'h100-ib400'"):
        TopologyParams(ranks_per_host=None, preset="h100-ib40", cluster=None)
    for preset, cluster in ((None, None), ("h100-efa", SIMPLE)):
        with pytest.raises(ValidationError, match="give preset or cluster"):
            TopologyParams(ranks_per_host=None, preset=preset, cluster=cluster)
