"""Ranks that torchrun starts: two agents on this host, and two hosts emulated by namespaces."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pandas as pd
import pytest
import warm
from conftest import ROOT, bootstrap
from kedro.framework.session import KedroSession

from measurement.conftest import COMM
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import CommCampaign, CommMeasureParams, torchrun_team
from neuroshard_pipeline.tables.samples import CommSample

pytestmark = pytest.mark.waits

SCRIPT = ROOT / "benchmarks/tiers/bench_two_hosts.py"
RANKS = "neuroshard_pipeline.measurement.torchrun_ranks"
AGENT = ROOT / "tests/torchrun_agent.py"
MORTAL_RANKS = Path(__file__).with_name("mortal_ranks.py")
SLOW_MBIT, FAST_MBIT = 40.0, 4000.0
HANGS_AFTER_S = 10.0
FATES = ["deadly", "endless"]
SEED = 5

specification = importlib.util.spec_from_file_location("bench_two_hosts", SCRIPT)
two = importlib.util.module_from_spec(specification)
specification.loader.exec_module(two)


def free_endpoint():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def across(count):
    """Samples of 4 ranks, and one of 2 ranks."""
    samples = [
        CommSample(f"s{k}", 64, tuple(8 * (k + rank + 1) for rank in range(4)), (0.0,) * 4) for k in range(count)
    ]
    return [*samples, CommSample("on one host", 64, (8, 16), (0.0, 0.5))]


def fatal(fate):
    return CommSample(fate, 64, (8, 8, 8, 8), (0.0,) * 4)


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """The endpoint of two agents with two ranks each; the last rank dies or hangs in the samples of `FATES`."""
    endpoint = free_endpoint()
    hosts = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    # Agents and ranks are forks, because new interpreters would import torch at every death of a rank.
    forked = ["--max-restarts", "20", "--start-method", "forkserver", "--run-path", MORTAL_RANKS, endpoint]
    folders = [tmp_path_factory.mktemp("agent") for _ in range(2)]
    agents = [warm.start([AGENT, *hosts, *forked], folder) for folder in folders]
    try:
        yield endpoint
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.join(60)


def params_for(endpoint, **changes):
    return CommMeasureParams(**COMM | {"local_world_size": 2, "torchrun_endpoint": endpoint} | changes)


@pytest.fixture(scope="module")
def records_of_fates(agents):
    """Records of a campaign with a sample that kills a rank and a sample that blocks one."""
    params = params_for(agents, visits=1, chunk_samples=5, timeout_s=HANGS_AFTER_S)
    return dict(CommCampaign(params, SEED).run([*across(3), *map(fatal, FATES)], {}))


def run_collectives(data_root, **params):
    """Run the nodes of the stages augment and measure that draw and measure collectives."""
    bootstrap()
    with KedroSession.create(ROOT, env="test", runtime_params={"data_root": str(data_root), **params}) as session:
        costs = ["measure.comm_costs", "measure.reduction_costs"]
        session.run(pipeline_names=["augment", "measure"], to_outputs=costs)


@pytest.mark.slow
def test_a_kedro_run_measures_across_hosts_and_a_finished_campaign_needs_no_torchrun(tmp_path, agents):
    world_sizes = {"world_sizes": [2, 4]}
    augment = {"comm_samples": world_sizes | {"num_samples": 4}, "reduction_samples": world_sizes | {"num_sizes": 3}}
    run_collectives(tmp_path, augment=augment, local_world_size=2, torchrun_endpoint=agents)
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "04_feature/comm_shards").rglob("*.parquet")}
    assert {path.name.split("-")[0] for path in shards} == {"w2", "w4"}
    run_collectives(tmp_path, augment=augment, local_world_size=2, torchrun_endpoint=free_endpoint())
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "04_feature/comm_shards").rglob("*.parquet")}
    assert again == shards
    costs = pd.read_parquet(max((tmp_path / "04_feature/comm_costs.parquet").glob("*/*.parquet")))
    assert costs["error"].isna().all()
    assert costs.groupby("sample_id").size().value_counts().to_dict() == {2: 2, 4: 2}
    reductions = pd.read_parquet(max((tmp_path / "04_feature/reduction_costs.parquet").glob("*/*.parquet")))
    assert reductions["error"].isna().all()
    assert any("4-ranks-2-hosts" in sample_id for sample_id in reductions["sample_id"])


@pytest.mark.slow
def test_a_sample_that_kills_or_blocks_a_rank_becomes_error_rows_and_the_rest_is_measured(agents, records_of_fates):
    rows = pd.concat(records_of_fates.values())
    assert set(rows.loc[rows["error"].notna(), "sample_id"]) == set(FATES)
    assert set(rows["sample_id"]) == {sample.sample_id for sample in across(3)} | set(FATES)
    for fate in FATES:
        assert "did not finish within 10 s" in rows.loc[rows["sample_id"] == fate, "error"].iloc[0]
    succeeded = rows[rows["error"].isna()]
    assert (succeeded["forward_ms"] > 0).all()
    assert succeeded["backward_ms"].notna().all()
    costs = CommCampaign(params_for(agents), SEED).measure(across(2))
    assert costs["error"].isna().all()


def test_without_torchrun_the_error_gives_the_command_that_starts_it(comm_params, monkeypatch, caplog):
    monkeypatch.setattr(torchrun_team, "_CONNECT_WAIT_S", 0.1)
    params = comm_params(local_world_size=2, torchrun_endpoint=free_endpoint())
    with pytest.raises(MeasurementError, match=r"nothing answers .*; start on each of 2 hosts: torchrun --nnodes 2 "):
        CommCampaign(params, SEED).measure(across(1))
    assert f"nothing listens at {params.torchrun_endpoint}; waiting up to 0.1 s for torchrun" in caplog.messages


def test_an_unknown_host_is_refused_without_waiting(comm_params):
    params = comm_params(local_world_size=2, torchrun_endpoint="no-such-host.invalid:1")
    with pytest.raises(MeasurementError, match=r"nothing answers at no-such-host.invalid:1; start on"):
        CommCampaign(params, SEED).measure(across(1))


def test_a_connection_that_breaks_is_not_reported_as_torchrun_that_never_ran(comm_params, monkeypatch):
    class Broken:
        def check(self, _keys):
            raise ConnectionResetError("connection reset by peer")

    monkeypatch.setattr(torchrun_team, "open_store", lambda _endpoint: Broken())
    params = comm_params(local_world_size=2, torchrun_endpoint="host:1")
    with pytest.raises(MeasurementError, match=r"broke off \(connection reset by peer\) at host:1; start on"):
        torchrun_team.TorchrunTeam(4, across(1), params).ask([0], 1.0)


def test_ranks_that_do_not_fill_hosts_are_refused(comm_params):
    params = comm_params(local_world_size=3, torchrun_endpoint="nowhere:1")
    with pytest.raises(MeasurementError, match="world size 4 is not a multiple of 3 ranks per host"):
        CommCampaign(params, SEED).measure(across(1))


@pytest.mark.parametrize("given", [{"local_world_size": 2}, {"torchrun_endpoint": "first:29400"}])
def test_ranks_per_host_and_endpoint_go_together(comm_params, given):
    with pytest.raises(ValueError, match="go together"):
        comm_params(**given)


@dataclass
class Fork:
    """What the benchmark uses of a `subprocess.Popen`, for a program that is a fork."""

    process: BaseProcess
    output: Path

    @property
    def returncode(self):
        return self.process.exitcode

    def terminate(self):
        self.process.terminate()

    def wait(self, timeout):
        self.process.join(timeout)

    def communicate(self, timeout):
        self.wait(timeout)
        return (self.output / "stdout").read_text(), None


@pytest.fixture
def forked_hosts(tmp_path_factory, monkeypatch):
    """The programs on both hosts of the benchmark are forks, because six new interpreters would import torch."""

    def started(host, command, _log=None):
        if command[0].endswith("torchrun"):
            module = command.index("-m")
            forked = ["--start-method", "forkserver", "--run-path", MORTAL_RANKS]  # no sample here is one of `FATES`
            command = [sys.executable, AGENT, *command[1:module], *forked, *command[module + 2 :]]
        output = tmp_path_factory.mktemp("program")
        return Fork(warm.start(command[1:], output, {"GLOO_SOCKET_IFNAME": "wire"}, namespaces_of=host), output)

    monkeypatch.setattr(two, "_started", started)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_hosts")
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
    assert not any(name.startswith("TORCHELASTIC") for name in os.environ)
    done = warm.run("-m", RANKS)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: torchrun must start this module")
