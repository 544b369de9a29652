"""Like `torchrun_ranks`, but the last rank dies before a chunk with the sample "deadly", and hangs before "endless"."""

from __future__ import annotations

import os
import signal
import time

from neuroshard_pipeline.measurement import torchrun_ranks
from neuroshard_pipeline.measurement.comm_bench import CollectiveBench

measure = CollectiveBench.measure


def measure_or_fail(self, samples):
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        names = " ".join(sample.sample_id for sample in samples)
        if "deadly" in names:
            os.kill(os.getpid(), signal.SIGKILL)
        if "endless" in names:
            time.sleep(3600)
    return measure(self, samples)


CollectiveBench.measure = measure_or_fail
torchrun_ranks.main()
