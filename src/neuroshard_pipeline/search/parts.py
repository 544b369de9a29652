"""The parts of a step's cost on every rank, for shards of any sharding type.

Tables of one module with the same sharding type form a *group*, which shares collectives. A step has these parts on
every rank:

    input dist     the exchange of ids (`StepCostModel.prices`); free if the trainer overlaps it
    lookups        one per group, data type, pooling, compute kernel and width of sequence tables; a replica looks up
                   the samples of its rank only
    reduction      row_wise: reduce_scatter of the partial sums over all ranks, backward all_gather;
                   table_row_wise, grid_shard: the same among the ranks of each host;
                   data_parallel: all_reduce of the dense gradients of every kernel;
                   host_row_wise (popular rows that every host has): all_reduce of dense gradients among the ranks at
                   the same position on their hosts;
                   replica groups: all_reduce of weights and optimizer state, divided by sync_interval
    all-to-all     of looked-up rows or their sums, backward of their gradients: one per group of column_wise tables,
                   of table_row_wise or grid_shard tables (if there are several hosts), and of sequence tables of any
                   type except data_parallel; for a host_row_wise group, among the ranks of each host.
                   A float takes 2 bytes in reduce_scatter, all_gather and all-to-all if the task says so
    module         what TorchRec's module adds to these (`StepCostModel.prices`), and the updates by dense gradients

If models have no step cost model, only column-wise plans have a cost: lookups and all-to-all, as in [Zha2023].

Shapes: W ranks, S shards, D distinct shards, H numbers that describe a shard's cost (shard embedding).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.comm import ranks_per_host_of
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.shard_cache import ShardCache
from neuroshard_pipeline.tables.dedup import exchanged
from neuroshard_pipeline.tables.placed import PlacedShards
from neuroshard_pipeline.tables.replica_groups import groups_on_host, synced_bytes
from neuroshard_pipeline.tables.samples import Reduction
from neuroshard_pipeline.tables.step_work import Group, group_of, kernel_of, work_of
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

_BYTES_PER_FLOAT = 4
_CUTS_ROWS_ON_HOST = ("table_row_wise", "grid_shard")


@dataclass
class Parts:
    """Costs of every rank in ms, without the all-to-alls, and what the costs of the all-to-alls depend on.

    Attributes:
        compute_ms: forward and backward compute, (W, 2).
        compute_bounds_ms: for every kernel, predicted forward + backward ms (W,) and its prediction interval (W, 2).
        dim_sums: for every group with an all-to-all, the 4-byte words that each rank sends in it per sample, (W,). If
            each host has its own all-to-all: per sample of the host, (hosts, ranks per host).
        input_dist_ms, module_ms: (W,) each, or None if there is no step cost model.
        reduction_ms: (W,), or None if the plan has no reductions.
        reduction_bounds_ms: prediction intervals of `reduction_ms`, (W, 2); bounds of all reductions are added.
        exchanges_ids: whether all ranks exchange ids between the backward and the forward lookups.
    """

    compute_ms: FloatArray
    compute_bounds_ms: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)
    dim_sums: dict[Group, FloatArray] = field(default_factory=dict)
    input_dist_ms: FloatArray | None = None
    module_ms: FloatArray | None = None
    reduction_ms: FloatArray | None = None
    reduction_bounds_ms: FloatArray | None = None
    exchanges_ids: bool = False

    @property
    def own_ms(self) -> FloatArray:
        """(W,) sum of a rank's costs without all-to-alls; this work delays its start of the next forward all-to-all."""
        further = [ms for ms in (self.input_dist_ms, self.module_ms, self.reduction_ms) if ms is not None]
        return np.asarray(sum(further, start=self.compute_ms.sum(axis=-1)))


def step_parts(
    task: ShardingTask,
    shards: Sequence[Shard],
    ranks: Sequence[int],
    models: Models,
    known: ShardCache | None = None,
    bounded: bool = False,
) -> Parts:
    """The parts of a step with `shards[i]` on `ranks[i]`, with prediction intervals if `bounded`.

    The shards need not be all shards of the task. `known` remembers what was computed for earlier plans of the task.

    Raises:
        CostModelError: a shard is not column-wise, and the models have no step cost model.
    """
    known = known or ShardCache(task, models)
    return parts_of_steps(task, [known.placed(shards, ranks)], models, known, bounded)[0]


def parts_of_steps(
    task: ShardingTask, plans: Sequence[PlacedShards], models: Models, known: ShardCache, bounded: bool = False
) -> list[Parts]:
    """`step_parts` of several plans, with one call of the compute cost model."""
    steps = [Parts(np.zeros((task.world_size, 2)), dim_sums=all_to_alls(task, placed)) for placed in plans]
    _add_lookups(steps, plans, task, models, known, bounded)
    for parts, placed in zip(steps, plans, strict=True):
        if models.step is not None:
            _add_step(parts, task, placed, models.step, known, bounded)
        elif any(shard.sharding_type != "column_wise" for shard in placed.shards):
            raise CostModelError(
                f"{task.task_id}: these cost models have no step cost model, so they price column_wise plans only; "
                "train one with: kedro run --pipeline pretrain"
            )
    return steps


def _add_lookups(
    steps: Sequence[Parts],
    plans: Sequence[PlacedShards],
    task: ShardingTask,
    models: Models,
    known: ShardCache,
    bounded: bool,
) -> None:
    """Add the costs of all kernels of all groups."""
    kernels = [(own, of) for own, placed in zip(steps, plans, strict=True) for of in placed.by(kernel_of).values()]
    if not kernels:
        return
    sums = np.stack([of.per_rank(known.embeddings(of.shards)) for _, of in kernels])  # (K, W, H) of K kernels
    used = np.stack([of.per_rank(np.ones(len(of.shards))) > 0 for _, of in kernels])[..., None]
    costs = np.where(used, models.compute.costs_from_sums(sums, task.batch_size), 0.0)
    bounds = np.where(used, models.compute.interval_from_sums(sums, task.batch_size), 0.0) if bounded else costs
    for (parts, _), own, ends in zip(kernels, costs, bounds, strict=True):
        parts.compute_ms = parts.compute_ms + own
        if bounded:
            parts.compute_bounds_ms.append((own.sum(axis=-1), ends))


def outputs_per_sample(shard: Shard, task: ShardingTask) -> float:
    """Floats of output that a sample gets from the shard; for `host_row_wise`, a sample of the shard's host."""
    table = exchanged(shard, task).table
    bags = table.pooling_factor * shard.row_share if table.pooling == "none" else table.num_features
    return bags * shard.embedding_dim


def all_to_alls(task: ShardingTask, placed: PlacedShards) -> dict[Group, FloatArray]:
    """4-byte words per sample that every rank sends in the all-to-all of each group that has one (`Parts.dim_sums`).

    The communication cost model counts fp32 numbers; two numbers of half precision count as one.
    """
    found = {}
    for group, of_group in placed.by(group_of).items():
        dims = task.comm_share * _volumes(task, group, of_group)
        if group[1] == "host_row_wise":
            dims = dims.reshape(task.num_hosts, task.ranks_per_host)
        if dims.any() and dims.shape[-1] > 1:  # a single rank exchanges nothing
            found[group] = dims
    return found


def _volumes(task: ShardingTask, group: Group, placed: PlacedShards) -> FloatArray:
    """Floats per sample (W,) that every rank sends in the all-to-all of one group."""
    module, sharding_type = group
    outputs = np.array([outputs_per_sample(shard, task) for shard in placed.shards])
    if sharding_type != "data_parallel" and (module.is_sequence or sharding_type == "column_wise"):
        return placed.per_rank(outputs)
    if sharding_type in _CUTS_ROWS_ON_HOST and task.num_hosts > 1:
        # After the reduction inside the host, each of its ranks has the sums of an equal part of the samples.
        return _of_hosts(task, placed, outputs) / task.ranks_per_host
    return np.zeros(task.world_size)


def _of_hosts(task: ShardingTask, placed: PlacedShards, outputs: FloatArray) -> FloatArray:
    """(W,) sum of the `outputs` (D,) of all shards on each rank's host; a row shard counts with its share of rows."""
    shares = np.array([shard.row_share for shard in placed.shards])
    of_hosts = placed.per_rank(outputs * shares).reshape(task.num_hosts, task.ranks_per_host).sum(axis=1)
    return np.repeat(of_hosts, task.ranks_per_host)


@dataclass(frozen=True)
class GroupReduction:
    """One reduction of a group of tables or of replica groups: among all ranks, or in several sets of ranks at once.

    Attributes:
        collective: which one.
        size_bytes: (W,) whole buffer of each rank's collective (`cost_models.reductions`); 0 for a rank without one.
        num_ranks: ranks of each collective.
        ranks_per_host: largest number of these ranks on one host.
        interval: number of steps from one such collective to the next.
        at_once: number of these collectives that share the links of a host: 1, or one for every rank of the host.
    """

    collective: Reduction
    size_bytes: FloatArray
    num_ranks: int
    ranks_per_host: int
    interval: int = 1
    at_once: int = 1

    @property
    def priced_as(self) -> tuple[Reduction, FloatArray, int, int]:
        """Collective, bytes, ranks and ranks per host of one collective with about the same duration.

        If every rank of a host takes part in its own collective between hosts, these collectives share the network
        cards of the host. Together, they send as much as one collective of all ranks of these hosts, which stands for
        them because cost models can price it. On the lab's H100, it takes 1.0 to 1.5 times as long as they do.
        """
        times = self.at_once if self.num_ranks > self.ranks_per_host else 1
        return self.collective, times * self.size_bytes, times * self.num_ranks, times * self.ranks_per_host


def reductions(task: ShardingTask, placed: PlacedShards, gpus_per_host: int | None = None) -> list[GroupReduction]:
    """The reductions of one step, forward and backward, and the reductions that average replica groups.

    `gpus_per_host` are the GPUs of a host, if they are known (`tables.replica_groups`).
    """
    copies, on_host = task.num_replica_groups, groups_on_host(task, gpus_per_host)
    world, local, found = task.world_size, task.ranks_per_host, list[GroupReduction]()
    for group, of_group in placed.by(group_of).items():
        sharding_type = group[1]
        if sharding_type == "data_parallel":  # the gradients of a kernel have the weights' data type
            for own in of_group.by(kernel_of).values():
                size = own.per_rank(np.array([float(shard.weight_bytes) for shard in own.shards]))
                found.append(GroupReduction("all_reduce", size, world * copies, local * on_host))
        elif (num_bytes := _BYTES_PER_FLOAT * _reduced_floats(task, group, of_group)).any():
            if sharding_type == "host_row_wise":
                found.append(GroupReduction("all_reduce", num_bytes, task.num_hosts * copies, on_host, at_once=local))
                continue
            members, size = local if sharding_type in _CUTS_ROWS_ON_HOST else world, task.comm_share * num_bytes
            found += [GroupReduction(each, size, members, local) for each in ("reduce_scatter", "all_gather")]
    if copies > 1:
        synced = placed.per_rank(np.array([float(synced_bytes(shard, task)) for shard in placed.shards]))
        found.append(GroupReduction("all_reduce", synced, copies, on_host, task.sync_interval, at_once=local))
    return found


def _reduced_floats(task: ShardingTask, group: Group, placed: PlacedShards) -> FloatArray:
    """(W,) floats in the buffer of the reduction of one group, for the collective that each rank takes part in."""
    module, sharding_type = group
    if sharding_type == "host_row_wise":  # the dense gradients of the rank's rows
        return placed.per_rank(np.array([float(shard.num_rows * shard.embedding_dim) for shard in placed.shards]))
    if sharding_type == "column_wise" or module.is_sequence:
        return np.zeros(task.world_size)
    outputs = np.array([outputs_per_sample(shard, task) for shard in placed.shards])
    sums = task.batch_size * _of_hosts(task, placed, outputs)  # partial sums of all samples
    return np.full_like(sums, sums[:: task.ranks_per_host].sum()) if sharding_type == "row_wise" else sums


def _add_step(
    parts: Parts, task: ShardingTask, placed: PlacedShards, step: StepCostModel, known: ShardCache, bounded: bool
) -> None:
    """Add the input dist, the module's own work, the updates by dense gradients, and the reductions.

    Shards that exchange only inside a host have the prices for the ranks of one host.
    """
    hidden = 0.0 if task.pipelines_input_dist else 1.0
    parts.input_dist_ms = parts.module_ms = np.zeros(task.world_size)
    among_all = {shard.sharding_type for shard in placed.shards} - {"data_parallel", "host_row_wise"}
    parts.exchanges_ids = bool(among_all) and not task.pipelines_input_dist
    for is_on_host, of_kind in placed.by(lambda shard: shard.sharding_type == "host_row_wise").items():
        num_ranks = task.ranks_per_host if is_on_host else task.world_size
        work = work_of(of_kind, known.works(of_kind.shards))
        module = step.prices_of("module", num_ranks) + step.prices_of("dense", num_ranks)
        parts.input_dist_ms = parts.input_dist_ms + hidden * (work @ step.prices_of("input_dist", num_ranks))
        parts.module_ms = parts.module_ms + work @ module
    found = reductions(task, placed, ranks_per_host_of(step.provenance))
    if found:
        of = [each.priced_as for each in found]
        shares = 1.0 / np.array([each.interval for each in found])
        parts.reduction_ms = np.tensordot(shares, [step.reductions.predict_ms(*each) for each in of], axes=1)
        if bounded:
            parts.reduction_bounds_ms = np.tensordot(
                shares, [step.reductions.interval_ms(*each) for each in of], axes=1
            )
