"""Ranks that torchrun starts: two agents on this host, and two hosts emulated by namespaces."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pandas as pd
import pytest
from conftest import ROOT, run_pipeline

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import CommCampaign, torchrun_team
from neuroshard_pipeline.tables.samples import CommSample

SCRIPT = ROOT / "benchmarks/bench_two_hosts.py"
RANKS = "neuroshard_pipeline.measurement.torchrun_ranks"
MORTAL_RANKS = "measurement.mortal_ranks"
SLOW_MBIT, FAST_MBIT = 40.0, 4000.0
HANGS_AFTER_S = 10.0
SEED = 5

specification = importlib.util.spec_from_file_location("bench_two_hosts", SCRIPT)
two = importlib.util.module_from_spec(specification)
specification.loader.exec_module(two)


def free_endpoint():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def started_agents(module, folder, hosts=2, ranks_each=2):
    """Run torchrun agents and yield their endpoint."""
    endpoint = free_endpoint()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--nproc-per-node", str(ranks_each)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--max-restarts", "20", "-m", module, endpoint),
    ]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    with (folder / "agents.log").open("w") as log:
        agents = [subprocess.Popen(command, env=environment, stdout=log, stderr=log) for _ in range(hosts)]
        try:
            yield endpoint
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait(60)


def across(count):
    """Samples of 4 ranks, and one of 2 ranks."""
    samples = [
        CommSample(f"s{k}", 64, tuple(8 * (k + rank + 1) for rank in range(4)), (0.0,) * 4) for k in range(count)
    ]
    return [*samples, CommSample("on one host", 64, (8, 16), (0.0, 0.5))]


@pytest.mark.slow
def test_a_kedro_run_measures_across_hosts_and_a_finished_campaign_needs_no_torchrun(tmp_path):
    augment = {"augment": {"comm_samples": {"world_sizes": [2, 4], "num_samples": 8}}}
    run_pipeline(tmp_path, "augment", params=augment)
    with started_agents(RANKS, tmp_path) as endpoint:
        hosts = {"local_world_size": 2, "torchrun_endpoint": endpoint}
        run_pipeline(tmp_path, "measure", params=augment | hosts)
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "04_feature/comm_shards").rglob("*.parquet")}
    assert {path.name.split("-")[0] for path in shards} == {"w2", "w4"}
    run_pipeline(tmp_path, "measure", params=augment | hosts)  # torchrun has ended
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "04_feature/comm_shards").rglob("*.parquet")}
    assert again == shards
    costs = pd.read_parquet(max((tmp_path / "04_feature/comm_costs.parquet").glob("*/*.parquet")))
    assert costs["error"].isna().all()
    assert costs.groupby("sample_id").size().value_counts().to_dict() == {2: 4, 4: 4}


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["deadly", "endless"])
def test_a_sample_that_kills_or_blocks_a_rank_becomes_error_rows_and_the_rest_is_measured(comm_params, tmp_path, fate):
    samples = [*across(3)[:2], CommSample(fate, 64, (8, 8, 8, 8), (0.0,) * 4), *across(3)[2:]]
    with started_agents(MORTAL_RANKS, tmp_path) as endpoint:
        params = comm_params(
            local_world_size=2, torchrun_endpoint=endpoint, visits=1, chunk_samples=4, timeout_s=HANGS_AFTER_S
        )
        records = dict(CommCampaign(params, SEED).run(samples, {}))
        costs = CommCampaign(comm_params(local_world_size=2, torchrun_endpoint=endpoint), SEED).measure(samples[:2])
    rows = pd.concat(records.values())
    assert set(rows.loc[rows["error"].notna(), "sample_id"]) == {fate}
    assert set(rows["sample_id"]) == {sample.sample_id for sample in samples}
    assert "did not finish within 10 s" in rows.loc[rows["sample_id"] == fate, "error"].iloc[0]
    assert (rows.loc[rows["error"].isna(), ["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert costs["error"].isna().all()


def test_without_torchrun_the_error_gives_the_command_that_starts_it(comm_params, monkeypatch):
    monkeypatch.setattr(torchrun_team, "_CONNECT_WAIT_S", 0.1)
    params = comm_params(local_world_size=2, torchrun_endpoint=free_endpoint())
    with pytest.raises(MeasurementError, match=r"nothing answers .*; start on each of 2 hosts: torchrun --nnodes 2 "):
        CommCampaign(params, SEED).measure(across(1))


def test_ranks_that_do_not_fill_hosts_are_refused(comm_params):
    params = comm_params(local_world_size=3, torchrun_endpoint="nowhere:1")
    with pytest.raises(MeasurementError, match="world size 4 is not a multiple of 3 ranks per host"):
        CommCampaign(params, SEED).measure(across(1))


@pytest.mark.parametrize("given", [{"local_world_size": 2}, {"torchrun_endpoint": "first:29400"}])
def test_ranks_per_host_and_endpoint_go_together(comm_params, given):
    with pytest.raises(ValueError, match="go together"):
        comm_params(**given)


@pytest.mark.slow
@pytest.mark.skipif(two.why_not() is not None, reason=f"hosts cannot be emulated: {two.why_not()}")
def test_costs_between_hosts_follow_the_wire():
    """The clock of the second host is a thousand seconds ahead, which must have no effect."""
    slowest = []
    with two.two_hosts() as hosts, two.started_ranks(hosts, 1):
        for mbit in (SLOW_MBIT, FAST_MBIT):
            two.set_rate(hosts, mbit)
            costs = two.measured_ms(hosts, 1)
            assert costs["error"].isna().all()
            slowest.append(costs[["forward_ms", "backward_ms"]].max())
    # No data can be faster than the wire, except for the burst that the token bucket allows.
    least_ms = 0.9 * two.wire_ms(SLOW_MBIT, 1)
    assert (slowest[0] >= least_ms).all()
    assert (slowest[1] < least_ms).all()
    assert (slowest[0] < 10 * two.CLOCK_AHEAD_S).all()


def test_without_torchrun_it_says_so():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, "-m", RANKS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: torchrun must start this module")
