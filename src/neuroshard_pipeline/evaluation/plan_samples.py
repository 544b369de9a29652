"""Lists the samples to measure for plans, and assigns the measured costs of the samples to the plans' ranks.

A sample is what one measurement runs: one lookup kernel of a rank, or one collective. Tables of one module and sharding
type share collectives. A rank looks them up with one kernel, or with several if they differ, for example, in data type
(`search.parts`). Input dist (the exchange of ids) and the module's own work have no samples, because both happen only
inside TorchRec's module, which the pipeline `truth` runs.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.search.parts import GroupReduction, all_to_alls, reductions
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import start_skew_ms
from neuroshard_pipeline.tables.dedup import looked_up
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample, Direction, ReductionSample
from neuroshard_pipeline.tables.step_work import Kernel, kernel_of
from neuroshard_pipeline.tables.table import TABLE_DEFAULTS, Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Start skews are rounded to 0.1 microseconds, far below the noise of all costs, so that more samples are identical.
_SKEW_DECIMALS = 4
_BYTES_PER_FLOAT = 4

#: Task id → mark; see `session_marks`.
Marks = Mapping[str, str]
NO_MARKS: Marks = {}

Sample = TypeVar("Sample", ComputeSample, CommSample, ReductionSample)

#: Cost in ms per plan and rank.
RankCosts = list[tuple[float, ...]]


@dataclass(frozen=True)
class PlanSamples(Generic[Sample]):
    """Samples of plans; equal samples are measured once.

    Attributes:
        samples: distinct samples.
        sample_ids: sample id by plan, by rank, and by kernel or collective of the plan. It is None for a kernel without
            shards on the rank, for a reduction in which the rank takes no part, and for the forward all-to-alls of a
            plan whose start skews are unknown because a measurement failed.
    """

    samples: list[Sample]
    sample_ids: list[tuple[tuple[str | None, ...], ...]]

    @classmethod
    def of(cls, found: Sequence[Sequence[Sequence[Sample | None]]]) -> Self:
        """Collect the samples `found` by plan, rank, and kernel or collective."""
        every = (sample for plan in found for samples in plan for sample in samples)
        distinct = {sample.sample_id: sample for sample in every if sample is not None}
        ids = [
            tuple(tuple(None if sample is None else sample.sample_id for sample in samples) for samples in plan)
            for plan in found
        ]
        return cls(list(distinct.values()), ids)

    def sums(self, cost: Callable[[str | None, int], float]) -> RankCosts:
        """Sums of the costs of a rank's samples, by plan; `cost` is a function of sample id and rank."""
        return [
            tuple(float(sum(cost(name, rank) for name in names)) for rank, names in enumerate(plan))
            for plan in self.sample_ids
        ]


def session_marks(plans: Sequence[Plan]) -> dict[str, str]:
    """A hash of all plans of each task, by task id.

    Sample ids contain this hash. Records of earlier runs are therefore used only if they measured the same plans of the
    task. All plans of a task are thus measured together, and the machine's drift affects all of them alike.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for plan in plans:
        found[plan.task.task_id].append(repr(sorted(zip(map(_shard_key, plan.shards), plan.ranks, strict=True))))
    return {task_id: _digest("\n".join(sorted(texts))) for task_id, texts in found.items()}


def rank_compute_samples(plans: Sequence[Plan], marks: Marks = NO_MARKS) -> PlanSamples[ComputeSample]:
    """One compute sample per lookup kernel of a rank; equal lookups with equal optimizers and marks share a sample.

    Raises:
        MeasurementError: a plan has tables in host memory or `host_row_wise` tables, which no backend measures.
    """
    for plan in plans:
        _require_measurable(plan)
    return PlanSamples.of([_plan_kernels(plan, marks.get(plan.task.task_id, "")) for plan in plans])


def backward_comm_samples(plans: Sequence[Plan], marks: Marks = NO_MARKS) -> PlanSamples[CommSample]:
    """All-to-alls of the plans, with start skews of 0; only their backward costs are used.

    Raises:
        MeasurementError: as in `rank_compute_samples`.
    """
    return _collectives(plans, [(0.0,) * plan.task.world_size for plan in plans], marks)


def forward_comm_samples(
    plans: Sequence[Plan],
    own_ms: Sequence[Sequence[float]],
    backward_comm_ms: Sequence[Sequence[float]],
    marks: Marks = NO_MARKS,
) -> PlanSamples[CommSample]:
    """All-to-alls with the start skews that follow from the work of each rank before its first forward all-to-all.

    Args:
        plans: plans of any tasks.
        own_ms: all costs of a rank except all-to-alls, per plan and rank (`own_costs_ms`); NaN if a measurement failed.
        backward_comm_ms: cost of the backward all-to-alls per plan and rank; NaN if a measurement failed.
        marks: see `session_marks`.

    Raises:
        MeasurementError: as in `rank_compute_samples`.
    """
    skews: list[tuple[float, ...] | None] = []
    for own, backward in zip(own_ms, backward_comm_ms, strict=True):
        start_skew = np.round(start_skew_ms(own, backward), _SKEW_DECIMALS)
        skews.append(tuple(start_skew.tolist()) if np.isfinite(start_skew).all() else None)
    return _collectives(plans, skews, marks)


def one_way(pairs: PlanSamples[CommSample], direction: Direction) -> PlanSamples[CommSample]:
    """The samples of only one collective of every pair; a campaign that times both takes almost twice as long."""
    return replace(pairs, samples=[pair.one_way(direction) for pair in pairs.samples])


def own_costs_ms(
    plans: Sequence[Plan], compute_ms: Sequence[Sequence[float]], reduction_ms: Sequence[Sequence[float]] | None
) -> RankCosts:
    """All costs of a rank except all-to-alls, per plan and rank; NaN if a measurement failed.

    Input dist and the module's own work are not measured. Their predicted costs are added, as in predicted start skews.

    Args:
        plans: plans of any tasks.
        compute_ms: compute cost per plan and rank, measured or predicted.
        reduction_ms: cost of the reductions, ignored for a plan without reductions; None if no plan has any.
    """
    found = []
    for index, plan in enumerate(plans):
        own = np.array(compute_ms[index], dtype=np.float64)
        if reduction_ms is not None and reductions(plan.task, plan.shards, plan.ranks):
            own += reduction_ms[index]
        if plan.predicted is not None:
            for predicted in filter(None, (plan.predicted.input_dist_ms, plan.predicted.module_ms)):
                own += predicted
        found.append(tuple(own.tolist()))
    return found


def reduction_samples(
    plans: Sequence[Plan], hosts_of: Callable[[int], int], marks: Marks = NO_MARKS
) -> PlanSamples[ReductionSample]:
    """One sample per reduction and rank. Reductions inside a host may have other sizes than those inside other hosts.

    Args:
        plans: plans of any tasks.
        hosts_of: maps a number of ranks to the number of hosts on which they are measured (`CommCampaign.hosts_of`).
        marks: see `session_marks`.
    """
    found = []
    for plan in plans:
        mark, of_plan = marks.get(plan.task.task_id, ""), reductions(plan.task, plan.shards, plan.ranks)
        found.append(
            [
                [_reduction(each, rank, hosts_of, mark) if each.size_bytes[rank] else None for each in of_plan]
                for rank in range(plan.task.world_size)
            ]
        )
    return PlanSamples.of(found)


def measured_compute_ms(ranks: PlanSamples[ComputeSample], compute_costs: pd.DataFrame) -> RankCosts:
    """Forward + backward compute cost per plan and rank; 0 for an empty rank, NaN if a measurement failed."""
    measured = compute_costs[compute_costs["error"].isna()].set_index("sample_id")
    total = (measured["forward_ms"] + measured["backward_ms"]).to_dict()
    return ranks.sums(lambda name, _: 0.0 if name is None else total.get(name, np.nan))


def measured_comm_ms(collectives: PlanSamples[CommSample], comm_costs: pd.DataFrame, direction: str) -> RankCosts:
    """All-to-all cost of one direction ("forward" or "backward") per plan and rank; NaN if a measurement failed."""
    measured = comm_costs[comm_costs["error"].isna()]
    cost = measured.set_index(["sample_id", "rank"])[f"{direction}_ms"].to_dict()
    return collectives.sums(lambda *place: cost.get(place, np.nan))


def measured_reduction_ms(of_plans: PlanSamples[ReductionSample], reduction_costs: pd.DataFrame) -> RankCosts:
    """Cost of the reductions per plan and rank; NaN if the plan has none, or if a measurement failed."""
    measured = reduction_costs[reduction_costs["error"].isna()]
    cost = measured.set_index("sample_id")["cost_ms"].to_dict()
    totals = of_plans.sums(lambda name, _: 0.0 if name is None else cost.get(name, np.nan))
    has_any = [any(name is not None for names in plan for name in names) for plan in of_plans.sample_ids]
    return [total if any_ else (np.nan,) * len(total) for total, any_ in zip(totals, has_any, strict=True)]


def _require_measurable(plan: Plan) -> None:
    start = f"{plan.task.task_id}: the plan of {plan.sharder} has table"
    for table in plan.task.tables:
        if table.is_in_host_memory:
            raise MeasurementError(
                f"{start} {table.name!r} in host memory ({table.compute_kernel}), whose costs are modelled only; "
                "measure tasks without host_memory_bytes"
            )
    for shard in plan.shards:
        if shard.sharding_type == "host_row_wise":
            raise MeasurementError(
                f"{start} {shard.table.name!r} on every host (host_row_wise), whose collectives among ranks at the "
                "same place of every host are modelled only; measure tasks without tiers"
            )


def _plan_kernels(plan: Plan, mark: str) -> list[list[ComputeSample | None]]:
    """The samples of a plan's lookup kernels by rank."""
    kernels: dict[Kernel, list[list[Shard]]] = {}
    for shard, rank in zip(plan.shards, plan.ranks, strict=True):
        ranks = kernels.setdefault(kernel_of(shard), [[] for _ in range(plan.task.world_size)])
        ranks[rank].append(shard)
    return [
        [_rank_sample(of[rank], plan.task, mark) for of in kernels.values()] for rank in range(plan.task.world_size)
    ]


def _rank_sample(shards: Sequence[Shard], task: ShardingTask, mark: str) -> ComputeSample | None:
    """The sample of one kernel of a rank, None without shards; its id is a hash of all that the cost depends on."""
    if not shards:
        return None
    seen = [looked_up(shard, task) for shard in shards]
    batch_size = seen[0][1]
    keyed = sorted(((_shard_key(shard), shard) for shard, _ in seen), key=lambda pair: pair[0])
    text = "\n".join([str(batch_size), task.optimizer, *(key for key, _ in keyed), *filter(None, [mark])])
    return ComputeSample(f"rank-{_digest(text)}", batch_size, tuple(shard for _, shard in keyed), task.optimizer)


def _shard_key(shard: Shard) -> str:
    """Everything that the cost of looking up a shard depends on, as text."""
    table = shard.table
    profile = (table.num_embeddings, table.pooling_factor, table.unique_rows, table.reuse, table.data_type)
    kind = [value for name, usual in TABLE_DEFAULTS.items() if (value := getattr(table, name)) != usual]
    if shard.sharding_type != "column_wise":
        kind += [shard.sharding_type, shard.row_offset, shard.num_rows]
    return repr((table.name, shard.embedding_dim, *profile, *kind))


def _collectives(
    plans: Sequence[Plan], skews: Sequence[tuple[float, ...] | None], marks: Marks
) -> PlanSamples[CommSample]:
    """All-to-alls of plans by rank. The first one of a plan has the start skews; ranks enter the rest together."""
    found = []
    for plan, skew in zip(plans, skews, strict=True):
        _require_measurable(plan)
        none = (0.0,) * plan.task.world_size
        samples = [
            None if skew is None else _collective(plan.task, dims, none if number else skew, marks)
            for number, dims in enumerate(volumes(plan))
        ]
        found.append([samples] * plan.task.world_size)
    return PlanSamples.of(found)


def volumes(plan: Plan) -> list[tuple[int, ...]]:
    """4-byte words per training example that every rank sends in each all-to-all of a plan, rounded to integers."""
    found = all_to_alls(plan.task, plan.shards, plan.ranks).values()
    return [tuple(np.rint(dims).astype(int).tolist()) for dims in found]


def _collective(task: ShardingTask, dim_sums: tuple[int, ...], skew_ms: tuple[float, ...], marks: Marks) -> CommSample:
    mark = marks.get(task.task_id)
    content = (task.batch_size, dim_sums, skew_ms)
    name = f"collective-{_digest(repr((*content, mark) if mark else content))}"
    return CommSample(name, task.batch_size, dim_sums, skew_ms)


def _reduction(reduction: GroupReduction, rank: int, hosts_of: Callable[[int], int], mark: str) -> ReductionSample:
    """The sample of one reduction of a rank. Its size is rounded up, so that all ranks have equal shares of floats."""
    share = _BYTES_PER_FLOAT * reduction.num_ranks
    size = share * math.ceil(reduction.size_bytes[rank] / share)
    hosts = hosts_of(reduction.num_ranks)
    name = _digest(repr((reduction.collective, size, reduction.num_ranks, hosts, mark)))
    return ReductionSample(f"reduction-{name}", reduction.collective, size, reduction.num_ranks, hosts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
