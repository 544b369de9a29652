"""As `torchrun_ranks`, but the last rank dies of every sample that is called deadly."""

from __future__ import annotations

import os
import signal

from neuroshard_pipeline.measurement import torchrun_ranks
from neuroshard_pipeline.measurement.comm_bench import CollectiveBench

measure = CollectiveBench.measure


def measure_or_die(self, samples):
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if last and any("deadly" in sample.sample_id for sample in samples):
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(self, samples)


CollectiveBench.measure = measure_or_die
torchrun_ranks.main()
