"""Models the cost of a training step of TorchRec's embedding modules by explicit formulas; nothing is measured.

    step = maximum over the ranks of (the sum of the parts below + waiting for other ranks)

    forward_compute, backward_compute   one fused lookup (`lab.device`) per module, sharding type, data type, pooling,
                    compute kernel and width of sequence tables;
                    a row shard gets its share of the ids, a replica the ids of its rank's samples (`tables.lookups`)
    input_dist, forward_comm, backward_comm, reduction, module   collectives and copies (`lab.exchange`,
                    `lab.sequences`)
    dense           gradients of replicas and of host tiers (popular rows: each host has a copy, divided among its
                    GPUs). Their G bytes are written as zeros (G) and copied to the all_reduce's buffer (2 G).
                    PyTorch's optimizer reads gradients, weights and state, and writes weights and state: 3 G for SGD,
                    5 G for Adagrad, 7 G for Adam [torchrec `BatchedDenseEmbeddingBag`; DistributedDataParallel]
    host            tables in host memory: transfers over the host link, management of caches (`lab.host_memory`)

Replica groups (`tables.replica_groups`) average weights and states every `sync_interval` steps, and every step bears an
equal share of this cost.

A step starts when all ranks get the gradients of the outputs, at the same time. The backward output dist, the backward
lookups, and the all_reduce and optimizer of replicas come first. The input dist, the forward lookups and the forward
output dist of the next batch follow. Nothing overlaps, except that the input dist of a task with `pipelines_input_dist`
costs nothing. Speeds and latencies are those of the lab's GPUs and networks and of `StepParams`. Shapes: W ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab import exchange
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.host_memory import host_us
from neuroshard_pipeline.lab.lookups import Lookup, lookup_of_shards
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.params import lab_values
from neuroshard_pipeline.lab.phases import Phase, Work, run_phases
from neuroshard_pipeline.lab.sequences import rows_at_places, search_of_ids
from neuroshard_pipeline.lab.step_groups import Group, Job, StepParams, columns, grouped
from neuroshard_pipeline.tables.dedup import looked_up
from neuroshard_pipeline.tables.replica_groups import groups_on_host
from neuroshard_pipeline.tables.step_work import Kernel, kernel_of
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Bytes that PyTorch's dense optimizer reads and writes per byte of gradients: weights, gradients, state.
_OPTIMIZER_PASSES = {"sgd": 3, "rowwise_adagrad": 5, "adam": 7}
_GRADIENT_PASSES = 3  # zeros are written; the buffer of the all_reduce is a copy


@dataclass(frozen=True)
class StepCost:
    """Modelled milliseconds of every rank in one step, (W,) each; see the top of this file.

    Attributes:
        input_dist_ms: exchange of ids and bag lengths.
        forward_compute_ms: forward lookups.
        backward_compute_ms: backward lookups.
        forward_comm_ms: all-to-alls of pooled rows, or of the rows of sequence tables.
        backward_comm_ms: all-to-alls of their gradients.
        reduction_ms: reduce_scatter, all_gather and all_reduce.
        module_ms: copies and conversions of outputs and their gradients.
        dense_ms: dense gradients of replicas and of host tiers.
        host_ms: transfers of rows between host and GPU memory, and the kernels that manage caches.
        waiting_ms: waiting for other ranks before collectives. The measured time of a collective includes its wait.
    """

    input_dist_ms: FloatArray
    forward_compute_ms: FloatArray
    backward_compute_ms: FloatArray
    forward_comm_ms: FloatArray
    backward_comm_ms: FloatArray
    reduction_ms: FloatArray
    module_ms: FloatArray
    dense_ms: FloatArray
    host_ms: FloatArray
    waiting_ms: FloatArray

    @property
    def rank_ms(self) -> FloatArray:
        """Sum of all parts and of waiting per rank, (W,)."""
        return np.sum(list(vars(self).values()), axis=0)

    @property
    def step_ms(self) -> float:
        """Cost of the step: that of its most expensive rank."""
        return float(self.rank_ms.max())


def step_params() -> StepParams:
    """The values that the package ships."""
    return StepParams(**lab_values()["step"])


def step_cost_ms(
    task: ShardingTask,
    shards: Sequence[Shard],
    ranks: Sequence[int],
    device: ModelledDevice,
    network: NetworkParams,
    host: StepParams | None = None,
) -> StepCost:
    """Modelled cost of a step of a plan with `shards[i]` on `ranks[i]`; a `data_parallel` table has one on every rank.

    If the task has a `local_world_size`, it overrides the network's GPUs per host. `host`, the costs of the host's
    calls, is by default what the package ships.
    """
    on_host = groups_on_host(task, network.gpus_per_host)
    if task.local_world_size is not None:
        network = network.model_copy(update={"gpus_per_host": task.local_world_size})
    job = Job(task, device, network, host or step_params(), on_host)
    parts, waiting = run_phases(step_phases(grouped(shards, ranks, task), job), task.world_size, network)
    names = (name.removesuffix("_ms") for name in StepCost.__dataclass_fields__ if name != "waiting_ms")
    none = np.zeros(task.world_size)
    return StepCost(**{f"{name}_ms": parts.get(name, none) for name in names}, waiting_ms=waiting)


def step_phases(groups: Sequence[Group], job: Job) -> list[Phase]:
    """All phases of a step in order."""
    modules = list(dict.fromkeys(group.module for group in groups))
    of_module = [[group for group in groups if group.module == module] for module in modules]
    exchanges = [exchange.output_dist(group, job) for group in groups]
    lookups = [_lookup_us(group, job) for group in groups]
    sides = [phase for members in of_module for phase in exchange.concatenation(members, job)]
    backward = [phase for _, phases in exchanges for phase in phases]
    forward = [phase for phases, _ in exchanges for phase in phases]
    ids = [phase for own in of_module for phase in (*search_of_ids(own, job), *exchange.input_dist(own, job))]
    places = [rows_at_places(group, job) for group in groups]
    return [
        *sides,
        *(phase for _, phases in places for phase in phases),
        *backward,
        *(Work("module", _averaged_us(group, job)) for group in groups),
        *(Work("backward_compute", us) for _, us in lookups),
        *(phase for group in groups for phase in _dense(group, job)),
        *exchange.averaging(groups, job),
        *([] if job.task.pipelines_input_dist else ids),
        *(Work("host", host_us(group, job)) for group in groups),
        *(Work("forward_compute", us) for us, _ in lookups),
        *(phase for group in groups for phase in _gathering(group, job)),
        *forward,
        *(phase for phases, _ in places for phase in phases),
        *sides,
    ]


def known_ms(
    task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int], device: ModelledDevice, network: NetworkParams
) -> dict[str, FloatArray]:
    """Milliseconds of every rank that cost models do not learn, by part of the step, (W,) each.

    In `input_dist`, these are searches for repeated ids and the division among tiers; in `module`, the copies of
    outputs of several kernels, minus what the weights of ids add to lookups. Arguments are those of `step_cost_ms`.
    """
    job, groups = Job(task, device, network, step_params()), grouped(shards, ranks, task)
    of_module = [[group for group in groups if group.module == module] for module in {group.module for group in groups}]
    us = dict.fromkeys(("input_dist", "module"), np.zeros(task.world_size))
    works = [*(search_of_ids(members, job) for members in of_module), *(_gathering(group, job) for group in groups)]
    for work in (work for each in works for work in each):
        us[work.part] = us[work.part] + work.us
    for group in groups:
        if group.is_weighted:
            without = replace(group, module=group.module._replace(is_weighted=False))
            added = np.sum(_lookup_us(group, job), axis=0) - np.sum(_lookup_us(without, job), axis=0)
            us["module"] = us["module"] - added
    return {part: of_part / 1e3 for part, of_part in us.items()}


def _gathering(group: Group, job: Job) -> list[Work]:
    """The copy that puts the outputs of a rank's lookups side by side, if the group has several kernels there.

    Source: torchrec embedding_lookup.py `embeddings_cat_empty_rank_handle`. Backward lookups read gradients in place.
    """
    kernels = {(rank, kernel_of(shard)) for shard, rank in zip(group.shards, group.ranks.tolist(), strict=True)}
    several = np.bincount([rank for rank, _ in kernels], minlength=job.world_size) > 1
    floats = job.task.batch_size / group.copies(job) * group.on_ranks(columns, job.world_size)
    return [Work("module", job.kernels_us(2 * exchange.FLOAT_BYTES * floats * several))] if several.any() else []


def _lookup_us(group: Group, job: Job) -> tuple[FloatArray, FloatArray]:
    """Microseconds of the group's lookups on every rank, forward and backward, (W,) each."""
    us, known = np.zeros((2, job.world_size)), {}
    for rank in range(job.world_size):
        shards = [group.shards[index] for index in np.flatnonzero(group.ranks == rank)]
        for key in dict.fromkeys(map(kernel_of, shards)):
            members = [shard for shard in shards if kernel_of(shard) == key]
            same = tuple((shard.table.name, shard.embedding_dim, shard.num_rows) for shard in members)
            if same not in known:
                time = job.device.time(_lookup(members, group, job))
                known[same] = (time.forward_us, time.backward_us)
            us[:, rank] += known[same]
    return us[0], us[1]


def _averaged_us(group: Group, job: Job) -> FloatArray:
    """Microseconds in which gradients of means are divided by the lengths of bags, on every rank, (W,).

    FBGEMM's backward writes the divided gradients into a separate tensor [`grad_mean_kernel`].
    """
    samples = job.local_batch if group.is_replicated else job.task.batch_size
    floats = group.on_ranks(lambda shard: columns(shard) * (shard.table.pooling == "mean"), job.world_size)
    return job.kernels_us(2 * exchange.FLOAT_BYTES * samples * floats)


def _lookup(shards: Sequence[Shard], group: Group, job: Job) -> Lookup:
    seen = [looked_up(shard, job.task) for shard in shards]
    optimizer = "none" if group.is_dense else job.task.optimizer
    lookup = lookup_of_shards([shard for shard, _ in seen], seen[0][1], optimizer)
    return replace(lookup, bags=lookup.ids if group.is_sequence else lookup.bags, weighted=group.is_weighted)


def _dense(group: Group, job: Job) -> list[Phase]:
    """Dense gradients of replicas and host tiers, which are zeroed, copied, all-reduced and read by the optimizer."""
    if not group.is_dense:
        return []
    if group.is_replicated:
        return [phase for key in dict.fromkeys(map(kernel_of, group.shards)) for phase in _replicas(group, key, job)]
    gradients = exchange.FLOAT_BYTES * group.on_ranks(
        lambda shard: shard.num_rows * shard.embedding_dim, job.world_size
    )
    return [_update(gradients, job), exchange.all_reduce_across_hosts(gradients, job)]


def _replicas(group: Group, kernel: Kernel, job: Job) -> list[Phase]:
    """Gradients of the replicas of one kernel, which have the weights' data type and an all_reduce of their own."""
    gradients = group.on_ranks(lambda shard: shard.weight_bytes * (kernel_of(shard) == kernel), job.world_size)
    return [_update(gradients, job), exchange.all_reduce(float(gradients[0]), job)]


def _update(gradients: FloatArray, job: Job) -> Work:
    passes = _GRADIENT_PASSES + _OPTIMIZER_PASSES[job.task.optimizer]
    return Work("dense", job.kernels_us(passes * gradients, 3))
