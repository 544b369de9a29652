"""Costs of gloo's all-to-all between two emulated hosts, depending on the bandwidth between them.

Each host is a network namespace, and the second one also has a monotonic clock of its own. The wire is a pair of veth
devices, whose rate `tc` (token bucket) limits in both directions. The script needs Linux, root, iproute2, util-linux.

    python benchmarks/tiers/bench_two_hosts.py --mbit 25 50 100      # ten seconds per rate on two cores

Expect costs of once or twice the time on the wire. The wire carries both directions at once: two opposite TCP streams
of 512 KiB take 84 to 88 ms at 50 Mbit/s, and one stream alone takes 83 ms. But with gloo, a rank sends only after its
peer has announced that it is ready to receive, and the announcement waits behind data in the same stream. A rank that
comes later by more than the latency of the wire finds its peer ready. It sends all its data first and its announcement
afterwards, and receives only then. The cost of the earlier rank, which waits for the later one, therefore contains the
time on the wire once, and the cost of the later rank contains it twice. The last two columns show these costs. If both
ranks start together, either case occurs by chance. Plain `isend` and `irecv` behave in the same way. If all receives
are posted 30 ms before the sends, both directions overlap, whichever rank is late.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pandas as pd

from neuroshard_pipeline.measurement import CommCampaign, CommMeasureParams
from neuroshard_pipeline.tables.samples import CommSample

SOURCE = Path(__file__).resolve().parents[2] / "src"
ADDRESSES = ("10.87.0.1", "10.87.0.2")
BATCH_SIZE = 1024
DIM_SUM = 256
CLOCK_AHEAD_S = 1000
#: Names of samples: all ranks start together, or the ranks of the second host start later.
EVEN, SKEWED = "even", "skewed"
LATER_MS = 5.0
ENDPOINT = f"{ADDRESSES[0]}:29500"
PROTOCOL = {
    "backend": "gloo",
    "torchrun_endpoint": ENDPOINT,
    "visits": 2,
    "warmup_iterations": 1,
    "iterations": 3,
    "iteration_statistic": "median",
    "visit_statistic": "min",
    "shuffle": "samples",
    "threads": 1,
    "buffer_bytes": 4194304,
    "start_margin_ms": 5,
    "reduction_visits": 1,
    "reduction_statistic": "mean",
    "chunk_samples": 5,
    "noise_floor_share": 0.0,
    "time_budget_s": None,
    "timeout_s": 60.0,
}


@contextmanager
def two_hosts() -> Iterator[tuple[int, int]]:
    """Create two hosts joined by a wire; yield the ids of the processes that own their namespaces."""
    clock = ["--time", "--monotonic", str(CLOCK_AHEAD_S)]
    waits = [["unshare", "--net", "sleep", "600"], ["unshare", "--net", *clock, "sleep", "600"]]
    hosts = [subprocess.Popen(wait) for wait in waits]
    try:
        first, second = (host.pid for host in hosts)
        _until_apart(first)
        _until_apart(second)
        on_host(first, ["ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", str(second)])
        for host, address in zip((first, second), ADDRESSES, strict=True):
            on_host(host, ["ip", "address", "add", f"{address}/24", "dev", "wire"])
            on_host(host, ["ip", "link", "set", "wire", "up"])
            on_host(host, ["ip", "link", "set", "lo", "up"])
        yield first, second
    finally:
        for host in hosts:
            host.kill()
            host.wait()


def set_rate(hosts: tuple[int, int], mbit: float) -> None:
    """Limit the bandwidth of the wire in both directions."""
    for host in hosts:
        limit = ["tbf", "rate", f"{mbit:g}mbit", "burst", "32kb", "latency", "400ms"]
        on_host(host, ["tc", "qdisc", "replace", "dev", "wire", "root", *limit])


@contextmanager
def started_ranks(hosts: tuple[int, int], ranks_per_host: int) -> Iterator[None]:
    """Run torchrun on both hosts."""
    command = [
        *(str(Path(sys.executable).with_name("torchrun")), "--nnodes", "2", "--nproc-per-node", str(ranks_per_host)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", ENDPOINT, "--rdzv-id", "ranks"),
    ]
    # Both hosts have the same name, so torchrun cannot decide by name which one holds the store.
    places = [["--local-addr", address, f"--rdzv-conf=is_host={1 - index}"] for index, address in enumerate(ADDRESSES)]
    module = ["-m", "neuroshard_pipeline.measurement.torchrun_ranks", ENDPOINT]
    with tempfile.TemporaryFile("w+") as log:
        agents = [_started(host, [*command, *place, *module], log) for host, place in zip(hosts, places, strict=True)]
        try:
            yield
        except RuntimeError:
            log.seek(0)
            print(log.read(), file=sys.stderr)
            raise
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait(60)


def measured_ms(hosts: tuple[int, int], ranks_per_host: int) -> pd.DataFrame:
    """Measure the samples from a process on the first host, and return their costs."""
    campaign = _started(hosts[0], [sys.executable, __file__, "--measure", str(ranks_per_host)])
    output = campaign.communicate(timeout=240)[0]
    if campaign.returncode:
        raise RuntimeError("the campaign failed; see its error above")
    return pd.read_json(io.StringIO(output), orient="records")


def measure(ranks_per_host: int) -> None:
    """Measure the samples in this process on the first host, and print their costs as JSON."""
    world_size = 2 * ranks_per_host
    params = CommMeasureParams(**PROTOCOL, local_world_size=ranks_per_host)
    later = (0.0,) * ranks_per_host + (LATER_MS,) * ranks_per_host
    samples = [
        CommSample(name, BATCH_SIZE, (DIM_SUM,) * world_size, skew_ms)
        for name, skew_ms in ((EVEN, (0.0,) * world_size), (SKEWED, later))
    ]
    print(CommCampaign(params, 0).measure(samples).to_json(orient="records"))


def wire_ms(mbit: float, ranks_per_host: int) -> float:
    """Time on the wire of what the ranks of one host send to the other."""
    bytes_across = ranks_per_host * 4 * DIM_SUM * BATCH_SIZE / 2
    return 8 * bytes_across / (mbit * 1e3)


def on_host(host: int, command: list[str]) -> None:
    """Run a command in a host's network."""
    subprocess.run(inside(host, command), check=True, capture_output=True)


def inside(host: int, command: list[str]) -> list[str]:
    """The command, to run in the namespaces of a host."""
    return [str(shutil.which("nsenter")), "--target", str(host), "--net", "--time", "--", *command]


def _started(host: int, command: list[str], log: IO[str] | None = None) -> subprocess.Popen[str]:
    """Start a command on a host. Output and errors go to `log`; without a log, only the output goes to a pipe."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        inside(host, command), env=environment, text=True, stdout=log or subprocess.PIPE, stderr=log
    )


def _until_apart(host: int) -> None:
    """Wait until the process has its own network namespace."""
    while Path(f"/proc/{host}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        pass


def why_not() -> str | None:
    """Why this machine cannot emulate hosts, or None if it can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "tc") if not shutil.which(tool)]
    if missing:
        return f"{', '.join(missing)} not installed"
    if subprocess.run(
        [str(shutil.which("unshare")), "--net", "--time", "true"], capture_output=True, check=False
    ).returncode:
        return "no permission to create namespaces"
    return None


def main() -> None:
    """Read the command line and print one line per rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, nargs="+", default=[25.0, 50.0, 100.0, 400.0])
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    if (reason := why_not()) is not None:
        raise SystemExit(f"Error: {reason}")
    print(f"ms{'':26}all start together      second host {LATER_MS:g} ms later: forward")
    print("Mbit/s   on the wire      forward   backward      first host   second host")
    ranks = arguments.ranks_per_host
    with two_hosts() as hosts, started_ranks(hosts, ranks):
        for mbit in arguments.mbit:
            set_rate(hosts, mbit)
            costs = measured_ms(hosts, ranks)
            even, skewed = (costs[costs["sample_id"] == name] for name in (EVEN, SKEWED))
            forward, backward = even["forward_ms"].max(), even["backward_ms"].max()
            first, second = (
                skewed.loc[(skewed["rank"] >= ranks) == late, "forward_ms"].max() for late in (False, True)
            )
            print(
                f"{mbit:6g} {wire_ms(mbit, ranks):13.1f} {forward:12.1f} {backward:10.1f} {first:15.1f} {second:13.1f}"
            )


if __name__ == "__main__":
    main()
