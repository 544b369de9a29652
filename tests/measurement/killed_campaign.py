"""Runs a small real campaign that is killed at random moments: `killed_campaign.py FOLDER KILLS [announce]`.

This process imports FBGEMM once, and every attempt is a fork of it, so that all attempts take seconds. An attempt
has its own process group, which is killed as a whole. With `announce`, the campaign runs in this process, which prints
the ids of its child processes after the first chunk and waits to be killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from neuroshard_pipeline.measurement import ComputeCampaign, ComputeMeasureParams
from neuroshard_pipeline.measurement.compute_bench import FbgemmCpuBench
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.workers import local_team

SEED = 5
PARAMS = ComputeMeasureParams(
    backend="fbgemm_cpu",
    engine="local",
    cluster_address=None,
    visits=4,
    warmup_iterations=0,
    iterations=1,
    iteration_statistic="min",
    visit_statistic="min",
    cache_treatment="cold_rows",
    shuffle="samples",
    workers=1,
    threads=1,
    arena_bytes=2**22,
    thorough_lookup_bytes=None,
    least_visits=1,
    ids_folder=None,
    chunk_samples=3,
    noise_floor_share=0.1,
    time_budget_s=None,
    timeout_s=60.0,
)
SAMPLES = [
    ComputeSample(f"compute-{index:06d}", 8, (whole(Table(f"t{index}", 50 + index, 4, 1.5)),)) for index in range(18)
]


def run(folder: Path) -> None:
    """Measure the visits that have no record in the folder; every record appears there atomically."""
    import pandas as pd

    done = {
        path.relative_to(folder).as_posix().removesuffix(".parquet"): pd.read_parquet(path)
        for path in folder.rglob("*.parquet")
    }
    for key, frame in ComputeCampaign(PARAMS, SEED).run(SAMPLES, done):
        path = folder / f"{key}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        frame.to_parquet(part)
        os.replace(part, path)


def run_and_kill(folder: Path, kills: int) -> int:
    """Start attempts until `kills` were killed at random moments and one has ended by itself; return `kills`.

    An attempt may end before its random moment. If one has, no further attempt follows the last kill.
    """
    chance = random.Random(0)
    finished = killed = 0
    while killed < kills or not finished:
        child = os.fork()
        if child == 0:
            os.setsid()
            run(folder)
            os._exit(0)
        if killed < kills:
            time.sleep(chance.uniform(0.02, 0.25))
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                with contextlib.suppress(ProcessLookupError):  # killed before it had its own group
                    os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                killed += 1
                continue
        else:
            _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"an attempt failed with status {status}")
        finished += 1
    return killed


if __name__ == "__main__":
    where, how_often = Path(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3:] == ["announce"]:
        import psutil

        campaign = ComputeCampaign(PARAMS, SEED).run(SAMPLES, {})
        next(campaign)
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        time.sleep(60)
    else:
        local_team.START_METHOD = "fork"  # the worker of an attempt is a fork of the attempt
        FbgemmCpuBench(PARAMS, SEED).measure(SAMPLES[:1])
        print(f"killed {run_and_kill(where, how_often)} times")
