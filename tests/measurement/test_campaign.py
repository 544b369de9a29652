"""Campaigns measure samples in several visits, store every finished chunk of visits, and resume after a kill."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pandas as pd
import psutil
import pytest
import warm

from measurement.killed_campaign import PARAMS, SAMPLES
from measurement.team_functions import (
    set_up_broken_worker,
    set_up_mortal_rank,
    set_up_mortal_worker,
    set_up_worker_that_recovers,
)
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import CommCampaign, ComputeCampaign, comm_bench, compute_bench
from neuroshard_pipeline.tables.samples import REDUCTIONS, CommSample, ComputeSample, ReductionSample
from neuroshard_pipeline.tables.table import Table, whole

SEED = 5
KILLS = 4


def test_every_sample_has_compute_costs_and_the_noise_floor_is_known(compute_params, compute_samples):
    samples, params = compute_samples(10), compute_params(workers=2, visits=3)
    records = dict(ComputeCampaign(params, SEED).run(samples, {}))
    frame = ComputeCampaign(params, SEED).costs(records, samples)
    assert list(frame) == ["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"]
    assert frame["sample_id"].tolist() == [sample.sample_id for sample in samples]
    assert (frame[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert (frame["repeats"] == 3).all()
    assert ComputeCampaign(params, SEED).summary(records, samples).noise_floor["samples"] == 1


def test_every_rank_of_every_sample_has_communication_costs(comm_params, comm_samples):
    samples, params = comm_samples(7), comm_params()
    frame = CommCampaign(params, SEED).measure(samples)
    assert list(frame) == ["sample_id", "rank", "forward_ms", "backward_ms", "spread_ms", "error"]
    assert [tuple(row) for row in frame[["sample_id", "rank"]].to_numpy()] == [
        (sample.sample_id, rank) for sample in samples for rank in range(sample.world_size)
    ]
    assert (frame[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert frame["error"].isna().all()


def test_reductions_are_measured_among_the_exchanges_with_fewer_visits(comm_params, comm_samples):
    grid = [
        ReductionSample(f"{name}-{size}", name, size, ranks, 1)
        for ranks, size in ((2, 80), (3, 1200))
        for name in REDUCTIONS
    ]
    exchanges, campaign = comm_samples(4), CommCampaign(comm_params(visits=3, reduction_visits=2), SEED)
    records = dict(campaign.run([*exchanges, *grid], {}))
    rows = pd.concat(records.values())
    visits = rows[~rows["replica"].astype(bool) & (rows["rank"] == 0)].groupby("sample_id").size()
    assert visits.to_dict() == {s.sample_id: 3 for s in exchanges} | {s.sample_id: 2 for s in grid}
    assert list(campaign.run([*exchanges, *grid], records)) == []
    assert set(campaign.costs(records, exchanges)["sample_id"]) == {sample.sample_id for sample in exchanges}
    frame = campaign.reduction_costs(records, grid)
    assert frame.columns.tolist() == ["sample_id", "cost_ms", "spread_ms", "error"]
    assert frame["sample_id"].tolist() == [sample.sample_id for sample in grid]
    assert frame["error"].isna().all()
    # A rank's cost is the mean over its visits (`reduction_statistic`); a collective's is that of its slowest rank.
    means = rows[~rows["replica"].astype(bool)].groupby(["sample_id", "rank"])["forward_ms"].mean()
    assert frame["cost_ms"].tolist() == pytest.approx([means[sample.sample_id].max() for sample in grid])


def test_a_rerun_measures_only_what_is_missing(compute_params, compute_samples):
    samples, params = compute_samples(10), compute_params()
    records = dict(ComputeCampaign(params, SEED).run(samples, {}))
    lost = sorted(records)[2]
    rest = {key: (lambda frame=frame: frame) for key, frame in records.items() if key != lost}
    assert [key for key, _ in ComputeCampaign(params, SEED).run(samples, rest)] == [lost]
    assert list(ComputeCampaign(params, SEED).run(samples, records)) == []


def visits_of(records):
    """Number of measurements of every sample in the records."""
    return Counter(name for frame in records.values() for name in frame["sample_id"])


def test_added_samples_alone_are_measured_and_another_protocol_starts_a_campaign(compute_params, compute_samples):
    params = compute_params(noise_floor_share=0.0)
    records = dict(ComputeCampaign(params, SEED).run(compute_samples(8), {}))
    added = dict(ComputeCampaign(params, SEED).run(compute_samples(12), records))
    assert visits_of(added) == {f"compute-{index:06d}": params.visits for index in range(8, 12)}
    together = records | added
    assert ComputeCampaign(params, SEED).costs(together, compute_samples(12))["repeats"].tolist() == [2] * 12
    # The shorter list still has its costs.
    assert ComputeCampaign(params, SEED).costs(together, compute_samples(8))["repeats"].tolist() == [2] * 8
    other = compute_params(noise_floor_share=0.0, iterations=2)
    assert not set(dict(ComputeCampaign(other, SEED).run(compute_samples(8), records))) & set(records)


def test_more_visits_measure_only_the_missing_visits(compute_params, compute_samples, caplog):
    # The sample with the most lookup bytes gets half of the visits. Which rounds visit it depends on `visits`.
    samples = compute_samples(5)
    limits = {"noise_floor_share": 0.0, "thorough_lookup_bytes": round(samples[2].lookup_bytes / 2), "least_visits": 1}
    few, many = compute_params(visits=4, **limits), compute_params(visits=6, **limits)
    records = dict(ComputeCampaign(few, SEED).run(samples, {}))
    before = visits_of(records)
    assert before[samples[2].sample_id] == 2
    with caplog.at_level(logging.INFO):
        added = dict(ComputeCampaign(many, SEED).run(samples, records))
    assert "18 of 27 visits were stored by earlier runs, the first at 20" in caplog.text
    assert visits_of(added)[samples[2].sample_id] == 1
    assert before + visits_of(added) == visits_of(dict(ComputeCampaign(many, SEED).run(samples, {})))
    together = records | added
    assert list(ComputeCampaign(many, SEED).run(samples, together)) == []
    assert list(ComputeCampaign(few, SEED).run(samples, together)) == []
    assert ComputeCampaign(few, SEED).costs(together, samples)["repeats"].tolist()[2] == 3


def test_parameters_without_effect_on_timings_measure_nothing_again(comm_params, comm_samples):
    samples = comm_samples(4)
    records = dict(CommCampaign(comm_params(), SEED).run(samples, {}))
    patient = comm_params(timeout_s=40.0, chunk_samples=2, visit_statistic="median", noise_floor_share=0.0)
    assert list(CommCampaign(patient, SEED).run(samples, records)) == []


def test_the_log_says_how_many_records_stay_unused_and_why(compute_params, compute_samples, caplog):
    samples = compute_samples(3)
    records = dict(ComputeCampaign(compute_params(), SEED).run(samples, {}))
    with caplog.at_level(logging.INFO):
        next(ComputeCampaign(compute_params(arena_bytes=2**23), SEED).run(samples, records))
    assert f"{len(records)} stored records stay unused" in caplog.text
    assert "arena_bytes was 4194304 and is 8388608" in caplog.text


def test_a_sample_that_does_not_fit_becomes_an_error_row_and_the_campaign_continues(compute_params, compute_samples):
    huge = ComputeSample("compute-huge", 8, (whole(Table("huge", 2**20, 64, 1.0)),))
    frame = ComputeCampaign(compute_params(), SEED).measure([*compute_samples(3), huge])
    assert frame["error"].notna().tolist() == [False, False, False, True]
    assert "arena" in frame["error"].iloc[-1]


def test_a_rank_that_dies_becomes_error_rows_and_the_rest_is_measured(comm_params, comm_samples, monkeypatch):
    samples = [*comm_samples(4), CommSample("comm-deadly", 10, (4, 8, 12), (0.0, 0.0, 0.0))]
    monkeypatch.setattr(comm_bench, "set_up_rank", set_up_mortal_rank)
    frame = CommCampaign(comm_params(), SEED).measure(samples)
    failed = frame[frame["error"].notna()]
    assert set(failed["sample_id"]) == {"comm-deadly"}
    assert failed["rank"].tolist() == [0, 1, 2]
    # A survivor may notice that the connection is closed or reset before the parent process notices the death.
    assert any(word in failed["error"].iloc[0] for word in ("died", "gloo"))
    assert (frame.loc[frame["error"].isna(), "forward_ms"] > 0).all()


def test_a_worker_that_dies_becomes_an_error_row(compute_params, compute_samples, monkeypatch):
    deadly = ComputeSample("compute-deadly", 8, (whole(Table("deadly", 10, 4, 1.0)),))
    samples = [*compute_samples(5), deadly]
    monkeypatch.setattr(compute_bench, "set_up_worker", set_up_mortal_worker)
    frame = ComputeCampaign(compute_params(workers=2), SEED).measure(samples)
    assert frame.loc[frame["error"].notna(), "sample_id"].tolist() == ["compute-deadly"]
    assert frame["repeats"].tolist() == [2] * 5 + [0]


def deadly(name):
    return ComputeSample(f"deadly {name}", 8, (whole(Table(f"deadly {name}", 10, 4, 1.0)),))


def test_a_sample_that_kills_its_worker_is_measured_again_by_the_next_run(
    compute_params, compute_samples, monkeypatch, tmp_path, caplog
):
    sample = deadly(f"until {tmp_path / 'healed'}")
    samples, params = [*compute_samples(5), sample], compute_params(visits=3, noise_floor_share=0.0)
    monkeypatch.setattr(compute_bench, "set_up_worker", set_up_worker_that_recovers)
    records = dict(ComputeCampaign(params, SEED).run(samples, {}))
    costs = ComputeCampaign(params, SEED).costs(records, samples)
    assert costs["error"].iloc[-1].endswith("died, exit code -9; another run may succeed")
    assert costs["repeats"].tolist() == [3] * 5 + [0]
    assert visits_of(records)[sample.sample_id] == 1  # the later visits left it out
    assert f"{sample.sample_id} failed: worker 0 died" in caplog.text
    assert "the next run measures it again" in caplog.text
    assert "1 of this run's samples failed" in caplog.text
    (tmp_path / "healed").touch()
    again = dict(ComputeCampaign(params, SEED).run(samples, records))
    assert visits_of(again) == {sample.sample_id: 3}
    costs = ComputeCampaign(params, SEED).costs(records | again, samples)
    assert costs["error"].isna().all()
    assert costs["repeats"].tolist() == [3] * 6
    assert list(ComputeCampaign(params, SEED).run(samples, records | again)) == []


def test_a_permanent_failure_is_not_measured_again_and_the_log_says_so(compute_params, compute_samples, caplog):
    huge = ComputeSample("compute-huge", 8, (whole(Table("huge", 2**20, 64, 1.0)),))
    samples = [*compute_samples(3), huge]
    records = dict(ComputeCampaign(compute_params(), SEED).run(samples, {}))
    assert caplog.text.count("compute-huge failed") == 1
    assert "it stays a row with this error" in caplog.text
    assert list(ComputeCampaign(compute_params(), SEED).run(samples, records)) == []
    error = ComputeCampaign(compute_params(), SEED).costs(records, samples)["error"].iloc[-1]
    assert error.endswith("; it fails in every run")


@pytest.mark.parametrize("chunk_samples", [1, 10])
def test_a_campaign_whose_first_samples_all_fail_stops_and_stores_nothing(
    compute_params, compute_samples, monkeypatch, chunk_samples
):
    monkeypatch.setattr(compute_bench, "set_up_worker", set_up_broken_worker)
    params = compute_params(workers=2, chunk_samples=chunk_samples)
    with pytest.raises(MeasurementError, match=r"none of its first \d+ samples.*no kernel image.*timeout_s"):
        next(ComputeCampaign(params, SEED).run(compute_samples(30), {}))


def test_samples_that_have_failed_before_do_not_stop_a_later_run(compute_params, compute_samples, monkeypatch):
    good, bad = compute_samples(4), [deadly(name) for name in "abcd"]
    params = compute_params(visits=1, noise_floor_share=0.0, chunk_samples=2)
    monkeypatch.setattr(compute_bench, "set_up_worker", set_up_mortal_worker)
    records = dict(ComputeCampaign(params, SEED).run([*good, *bad[:2]], {}))
    records |= dict(ComputeCampaign(params, SEED).run([*good, *bad], records))  # 2 new failures are too few to stop it
    records |= dict(ComputeCampaign(params, SEED).run([*good, *bad], records))
    costs = ComputeCampaign(params, SEED).costs(records, [*good, *bad])
    assert costs["error"].notna().tolist() == [False] * 4 + [True] * 4


def test_an_arena_that_cannot_be_allocated_is_an_error_not_rows(compute_params, compute_samples):
    with pytest.raises(MeasurementError, match="arena_bytes"):
        ComputeCampaign(compute_params(arena_bytes=2**55), SEED).measure(compute_samples(1))


def test_an_abandoned_campaign_leaves_no_process_behind(compute_params, compute_samples):
    campaign = ComputeCampaign(compute_params(), SEED).run(compute_samples(20), {})
    next(campaign)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    campaign.close()
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert len(after) == len(before) - 1


@pytest.fixture(scope="module")
def killed_campaigns(tmp_path_factory):
    """Folder and output of a campaign, killed `KILLS` times at random moments; at least one run ended by itself."""
    folder = tmp_path_factory.mktemp("killed")
    script = Path(__file__).with_name("killed_campaign.py")
    done = warm.run(script, folder, KILLS)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def visits_in(records):
    """Number of rows for every visit, sample and rank."""
    return Counter(
        (key.split("/")[1], *row)
        for key, frame in records.items()
        for row in frame[["sample_id", "digest", "replica", "rank"]].itertuples(index=False, name=None)
    )


def test_kills_lose_nothing(killed_campaigns):
    folder, said = killed_campaigns
    assert f"killed {KILLS} times" in said
    records = {
        path.relative_to(folder).as_posix().removesuffix(".parquet"): pd.read_parquet(path)
        for path in folder.rglob("*.parquet")
    }
    undisturbed = dict(ComputeCampaign(PARAMS, SEED).run(SAMPLES, {}))
    assert visits_in(records) == visits_in(undisturbed)
    frame = ComputeCampaign(PARAMS, SEED).costs(records, SAMPLES)
    assert (frame["repeats"] == PARAMS.visits).all()
    assert frame["error"].isna().all()


def test_workers_of_a_killed_campaign_end_by_themselves(tmp_path):
    script = Path(__file__).with_name("killed_campaign.py")
    campaign = warm.start([script, tmp_path, 0, "announce"], tmp_path)
    while campaign.is_alive() and not (tmp_path / "stdout").read_text().endswith("\n"):
        time.sleep(0.02)
    pids = [int(word) for word in (tmp_path / "stdout").read_text().split()]
    assert pids
    os.kill(campaign.pid, signal.SIGKILL)
    campaign.join()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=20)
    # Where nothing collects orphans, as in a container without an init process, a worker that has ended is a zombie.
    assert {process.status() for process in alive} <= {psutil.STATUS_ZOMBIE}


def test_the_date_is_that_of_the_last_visit(compute_params, compute_samples):
    samples, params = compute_samples(4), compute_params()
    records = dict(ComputeCampaign(params, SEED).run(samples, {}))
    times = [f"2026-01-0{day}T00:00:00+00:00" for day in range(1, 1 + len(records))]
    dated = {key: frame.assign(saved_at=time) for (key, frame), time in zip(records.items(), times, strict=True)}
    assert ComputeCampaign(params, SEED).summary(dated, samples).date == times[-1]
    assert ComputeCampaign(params, SEED).summary(dated, []).date is None
    assert all(datetime.fromisoformat(frame["saved_at"][0]).tzinfo is not None for frame in records.values())
