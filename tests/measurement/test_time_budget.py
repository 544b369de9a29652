"""The time budget of a campaign: which rounds of visits start on a slow machine."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.measurement.campaign import CommCampaign, ComputeCampaign
from neuroshard_pipeline.measurement.time_budget import TimeBudget

SEED = 7


def rounds_started(budget_s, seconds_of_rounds):
    """Number of rounds that start, and the time at their end, if the rounds take these seconds."""
    now = [0.0]
    budget = TimeBudget(budget_s, range(len(seconds_of_rounds)), lambda: now[0])
    for number, seconds in enumerate(seconds_of_rounds):
        # A campaign asks before every chunk, so several times in a round.
        if not budget.starts(number):
            return number, now[0]
        assert budget.starts(number)
        now[0] += seconds
    return len(seconds_of_rounds), now[0]


SECONDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=12)


@given(SECONDS)
def test_without_a_budget_all_rounds_start(seconds):
    assert rounds_started(None, seconds)[0] == len(seconds)


@given(st.floats(0, 60), SECONDS)
def test_half_of_the_rounds_always_start_and_later_ones_only_within_the_budget(budget_s, seconds):
    started, _ = rounds_started(budget_s, seconds)
    half = -(-len(seconds) // 2)
    assert started >= half
    if started > half:  # the last round was expected to end in time at the pace of the others
        assert sum(seconds[: started - 1]) * started / (started - 1) <= budget_s


@given(st.integers(1, 12), st.floats(0.1, 10))
def test_rounds_of_equal_length_end_in_time(count, seconds):
    started, end_s = rounds_started(count * seconds * (1 + 1e-9), [seconds] * count)
    assert started == count
    # 0.85 of at most 12 rounds is never a whole number, so that rounding decides nothing.
    assert rounds_started(end_s * 0.85, [seconds] * count)[0] == max(int(0.85 * count), -(-count // 2))


@pytest.mark.parametrize("visits", [1, 2, 5])
def test_a_campaign_leaves_rounds_to_the_next_run(compute_params, compute_samples, caplog, visits):
    samples, fields = compute_samples(6), {"visits": visits, "chunk_samples": 3, "noise_floor_share": 0.0}
    records = dict(ComputeCampaign(compute_params(**fields, time_budget_s=0), SEED).run(samples, {}))
    half = -(-visits // 2)
    assert ComputeCampaign(compute_params(**fields), SEED).costs(records, samples)["repeats"].tolist() == [half] * 6
    assert (f"{half} of {visits} rounds" in caplog.text) == (visits > 1)
    added = dict(ComputeCampaign(compute_params(**fields), SEED).run(samples, records))
    costs = ComputeCampaign(compute_params(**fields), SEED).costs(records | added, samples)
    assert costs["repeats"].tolist() == [visits] * 6


def test_all_ranks_of_a_collective_have_costs_if_the_budget_stops_the_rounds(comm_params, comm_samples, caplog):
    samples = comm_samples(4)
    campaign = CommCampaign(comm_params(visits=3, time_budget_s=0), SEED)
    with caplog.at_level(logging.WARNING):
        costs = campaign.measure(samples)
    assert costs["error"].isna().all()
    assert len(costs) == sum(sample.world_size for sample in samples)
    assert "2 of 3 rounds" in caplog.text
