"""Ranks that torchrun starts: two agents on this host, and two hosts emulated by namespaces."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys

import pandas as pd
import pytest
from conftest import ROOT

SCRIPT = ROOT / "benchmarks/bench_two_hosts.py"
MODULE = "neuroshard_pipeline.measurement.torchrun_campaign"
SLOW_MBIT, FAST_MBIT = 40.0, 4000.0

specification = importlib.util.spec_from_file_location("bench_two_hosts", SCRIPT)
two = importlib.util.module_from_spec(specification)
specification.loader.exec_module(two)


def run_agents(folder, number, ranks_each):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(number), "--nproc-per-node", str(ranks_each)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "-m", MODULE),
        *("--samples", folder / "samples.parquet", "--params", folder / "params.yml", "--out", folder / "out"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    agents = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(number)
    ]
    return [(agent.communicate(timeout=120)[0], agent.returncode) for agent in agents]


@pytest.mark.slow
def test_two_agents_measure_together_and_resume(tmp_path):
    rows = [(f"s{k}", 4, 64, rank, 8 * (k + rank + 1), 0.5 * rank) for k in range(3) for rank in range(4)]
    rows += [("other", 2, 64, rank, 8, 0.0) for rank in range(2)]
    columns = ["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"]
    pd.DataFrame(rows, columns=columns).to_parquet(tmp_path / "samples.parquet")
    (tmp_path / "params.yml").write_text(two.PARAMS)
    assert [code for _, code in run_agents(tmp_path, 2, 2)] == [0, 0]
    out = tmp_path / "out/2x2"
    costs = pd.read_parquet(out / "comm_costs.parquet")
    assert list(zip(costs["sample_id"], costs["rank"], strict=True)) == [row[0:4:3] for row in rows[:12]]
    assert costs["error"].isna().all()
    assert (costs[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    shards = {path: path.stat().st_mtime_ns for path in out.rglob("w*.parquet")}
    lost = min(shards)
    lost.unlink()
    assert [code for _, code in run_agents(tmp_path, 2, 2)] == [0, 0]
    again = {path: path.stat().st_mtime_ns for path in out.rglob("w*.parquet")}
    assert {path for path in shards if again[path] != shards[path]} == {lost}


@pytest.mark.slow
@pytest.mark.skipif(two.why_not() is not None, reason=f"hosts cannot be emulated: {two.why_not()}")
def test_costs_between_hosts_follow_the_wire(tmp_path):
    """The second host's clock is a thousand seconds ahead, which must not show."""
    with two.two_hosts() as hosts:
        slowest = []
        for mbit in (SLOW_MBIT, FAST_MBIT):
            two.set_rate(hosts, mbit)
            costs = two.measured_ms(hosts, tmp_path / f"{mbit:g}", 1)
            assert costs["error"].isna().all()
            slowest.append(costs[["forward_ms", "backward_ms"]].max())
    # No data can be faster than the wire, but for what the token bucket lets through at once.
    least_ms = 0.9 * two.wire_ms(SLOW_MBIT, 1)
    assert (slowest[0] >= least_ms).all()
    assert (slowest[1] < least_ms).all()
    assert (slowest[0] < 10 * two.CLOCK_AHEAD_S).all()


def test_without_torchrun_it_says_so(tmp_path):
    command = [sys.executable, "-m", MODULE, "--samples", "a", "--params", "b", "--out", tmp_path]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: torchrun must start this module")
