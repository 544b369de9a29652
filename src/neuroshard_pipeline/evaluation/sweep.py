"""How many GPUs a model's tables need: plans for several kinds of GPUs and sizes of the cluster, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import DoesNotFitError, TaskError, did_you_mean
from neuroshard_pipeline.evaluation.peak_memory import PeakMemory, peak_memory
from neuroshard_pipeline.host import usable_cores
from neuroshard_pipeline.search.explain import part_costs
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.workers import WorkerParams, map_items

#: GiB of a GPU's memory for embeddings; the rest is for the dense model and its activations (conf/<gpu>/globals.yml).
MEMORY_GIB = {"a100": 64.0, "h100": 64.0, "h200": 120.0}
#: GiB that PyTorch reports for the whole GPU.
GPU_GIB = {"a100": 79.0, "h100": 79.0, "h200": 139.0}

_GIB = 2**30
_TIMEOUT_S = 3600.0  # of one plan
#: Name of the shipped cost models of a GPU, and the task for its cluster.
Job = tuple[str, ShardingTask]


@dataclass(frozen=True)
class Candidate:
    """A kind of GPU, which names shipped cost models, and a number of ranks, with their plan or why there is none.

    `dense_gib` are GiB per rank for the dense part at the peak of a step.
    """

    gpu: str
    ranks: int
    plan: Plan | None
    problem: str = ""
    dense_gib: float = 0.0

    @cached_property
    def step_ms(self) -> float:
        """Predicted milliseconds of a step of the embedding modules; infinite without a plan."""
        return np.inf if self.plan is None else self.plan.predicted_cost_ms or np.inf

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all ranks, if the embedding modules took all the time."""
        return 0.0 if self.plan is None else self.plan.task.batch_size / self.step_ms * 1e3

    @property
    def slowest_part(self) -> str:
        """The most expensive part of the most expensive rank's step, and its share."""
        if self.plan is None or self.plan.predicted is None:
            return ""
        cost = self.plan.predicted
        rank = int(np.argmax(cost.rank_ms))
        parts = {name: ms[rank] for name, ms in part_costs(cost).items()}
        text = max(parts, key=lambda name: parts[name])
        return f"{text} ({parts[text] / cost.rank_ms[rank]:.0%})"

    @cached_property
    def peak(self) -> PeakMemory | None:
        """Memory of the ranks at the peak of a step; None without a plan."""
        return None if self.plan is None else peak_memory(self.plan, self.dense_gib * _GIB)

    @property
    def storage_reservation(self) -> float:
        """The `storage_reservation` that TorchRec's planner needs to leave room for the peak; 0 without a plan."""
        return 0.0 if self.peak is None else self.peak.storage_reservation(GPU_GIB[self.gpu] * _GIB)

    @property
    def memory_left_gib(self) -> float:
        """GiB that the fullest rank has left for embeddings."""
        if self.plan is None:
            return 0.0
        limits = self.plan.memory.limits(self.plan.task)
        return min(limit - used for used, limit in zip(self.plan.memory_bytes, limits, strict=True)) / _GIB


def sweep(
    tables: Sequence[Table],
    gpus: Sequence[str],
    ranks: Sequence[int],
    batch_size: int,
    memory_gib: float | None = None,
    workers: int | None = None,
    dense_gib: float = 0.0,
    **options: Any,
) -> list[Candidate]:
    """Plan the same tables for every kind of GPU and number of ranks.

    Args:
        tables: the model's tables, from `read_tables`, or from a model on the meta device by
            `torchrec_plan.modules.read_module_tables`.
        gpus: names of shipped cost models.
        ranks: numbers of ranks.
        batch_size: samples of a step over all ranks; a multiple of every number of ranks is best.
        memory_gib: GiB for embeddings on every rank; None for those of `MEMORY_GIB`.
        workers: processes; None for one per core.
        dense_gib: see `Candidate`; it does not change the plans.
        **options: further fields of `ShardingTask`, such as `optimizer`.

    Returns:
        One candidate for each pair of GPU and number of ranks, in this order.

    Raises:
        NeuroShardError: a GPU is unknown, or a task is impossible.
    """
    for name in (name for name in gpus if name not in MEMORY_GIB):
        raise TaskError(f"no GPU {name!r}{did_you_mean(name, MEMORY_GIB)}; use some of {', '.join(MEMORY_GIB)}")
    jobs: list[Job] = []
    for gpu in gpus:
        memory_bytes = int((MEMORY_GIB[gpu] if memory_gib is None else memory_gib) * _GIB)
        jobs += [(gpu, ShardingTask(tables, number, batch_size, memory_bytes, **options)) for number in ranks]
    found = _planned(jobs, min(len(jobs), workers or len(usable_cores())))
    return [replace(candidate, dense_gib=dense_gib) for candidate in found]


def _planned(jobs: list[Job], workers: int) -> list[Candidate]:
    """The candidates of all jobs, in their order; the largest clusters, which take longest, are planned first."""
    if workers == 1:
        return [candidate_of(job) for job in jobs]
    local = WorkerParams(engine="local", address=None, workers=workers, timeout_s=_TIMEOUT_S)
    order = sorted(range(len(jobs)), key=lambda index: -jobs[index][1].world_size)
    found: dict[int, Candidate] = {}
    for outcome in map_items(candidate_of, [jobs[index] for index in order], local):
        index = order[outcome.index]
        gpu, task = jobs[index]
        found[index] = outcome.value or Candidate(gpu, task.world_size, None, outcome.error or "")
    return [found[index] for index in range(len(jobs))]


def candidate_of(job: Job) -> Candidate:
    """Plan one task with the shipped cost models of a GPU."""
    gpu, task = job
    try:
        return Candidate(gpu, task.world_size, shard(task, load_cost_models(gpu)))
    except DoesNotFitError as error:
        return Candidate(gpu, task.world_size, None, str(error))
