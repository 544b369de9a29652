from __future__ import annotations

import logging

import pytest

from neuroshard_pipeline.measurement import ComputeCampaign

SEED = 3


@pytest.mark.parametrize(("share", "warnings"), [(0.05, 0), (0.5, 1)])
def test_a_campaign_beside_other_programs_says_so(compute_params, compute_samples, caplog, share, warnings):
    samples, params = compute_samples(2), compute_params()
    campaign = ComputeCampaign(params, SEED)
    records = dict(campaign.run(samples, {}))
    assert all(frame["other_programs"].between(0, 1).all() for frame in records.values())
    caplog.set_level(logging.WARNING)
    summary = campaign.summary({key: frame.assign(other_programs=share) for key, frame in records.items()}, samples)
    assert summary.other_programs == pytest.approx(share)
    told = [message for message in caplog.messages if "other programs used 50 % of this machine's cores" in message]
    assert len(told) == warnings
