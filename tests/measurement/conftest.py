from __future__ import annotations

from collections.abc import Callable

import pytest

from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

COMPUTE = {
    "backend": "fbgemm_cpu",
    "engine": "local",
    "cluster_address": None,
    "visits": 2,
    "warmup_iterations": 0,
    "iterations": 1,
    "iteration_statistic": "min",
    "visit_statistic": "min",
    "cache_treatment": "cold_rows",
    "shuffle": "samples",
    "workers": 1,
    "threads": 1,
    "arena_bytes": 2**22,
    "thorough_lookup_bytes": None,
    "least_visits": 1,
    "ids_folder": None,
    "chunk_samples": 4,
    "noise_floor_share": 0.1,
    "time_budget_s": None,
    "timeout_s": 60.0,
}
COMM = {
    "backend": "gloo",
    "local_world_size": None,
    "torchrun_endpoint": None,
    "visits": 2,
    "warmup_iterations": 0,
    "iterations": 1,
    "iteration_statistic": "median",
    "visit_statistic": "min",
    "shuffle": "samples",
    "threads": 1,
    "buffer_bytes": 2**20,
    "start_margin_ms": 0.3,
    "reduction_visits": 1,
    "reduction_statistic": "mean",
    "chunk_samples": 3,
    "noise_floor_share": 0.1,
    "time_budget_s": None,
    "timeout_s": 20.0,
}


@pytest.fixture
def compute_params() -> Callable[..., ComputeMeasureParams]:
    return lambda **changes: ComputeMeasureParams(**(COMPUTE | changes))


@pytest.fixture
def comm_params() -> Callable[..., CommMeasureParams]:
    return lambda **changes: CommMeasureParams(**(COMM | changes))


@pytest.fixture
def compute_samples() -> Callable[[int], list[ComputeSample]]:
    """Small samples of one to three tables; sample i is the same for every `count`."""

    def make(count: int) -> list[ComputeSample]:
        samples = []
        for index in range(count):
            tables = [Table(f"t{index}-{k}", 100 + 37 * index + k, 4 * (1 + k), 1.5 + k) for k in range(1 + index % 3)]
            samples.append(ComputeSample(f"compute-{index:06d}", 8, tuple(whole(table) for table in tables)))
        return samples

    return make


@pytest.fixture
def comm_samples() -> Callable[[int], list[CommSample]]:
    """Small collectives, alternately of 2 and of 3 ranks. The batch size is not divisible by 3."""

    def make(count: int) -> list[CommSample]:
        samples = []
        for index in range(count):
            ranks = range(2 + index % 2)
            dims = tuple(4 * (1 + index + rank) for rank in ranks)
            samples.append(CommSample(f"comm-{index:06d}", 10, dims, tuple(0.1 * rank for rank in ranks)))
        return samples

    return make
