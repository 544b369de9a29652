"""The work of a training step besides lookups and the exchange of pooled rows: ids, copies and dense gradients.

Shapes: W ranks, Q quantities. TorchRec's *input dist* sends every rank the ids that look up its shards. A *tier* is a
part of a sequence table's rows by popularity (`tables.tiers`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.tables.dedup import exchanged
from neuroshard_pipeline.tables.host_memory import host_link_bytes
from neuroshard_pipeline.tables.kinds import EmbeddingModule
from neuroshard_pipeline.tables.placed import PlacedShards, placed_shards
from neuroshard_pipeline.tables.table import Shard, ShardingType
from neuroshard_pipeline.tables.task import ShardingTask

#: Quantities of one rank, in millions, except those whose description begins with "number of".
QUANTITIES: dict[str, str] = {
    "modules": "number of modules that exchange ids; the input dists of a module's sharding types start together",
    "groups": "number of pairs of module and sharding type that exchange ids; each has its own input dist and lookup",
    "features": "number of features whose ids the rank receives; a feature counts again for every shard",
    "bags": "bag lengths that the rank receives: features * samples",
    "ids": "ids that the rank receives",
    "weights": "weights of ids that the rank receives",
    "sent_bags": "bag lengths that the rank sends, the same on all ranks",
    "sent_ids": "ids that the rank sends, the same on all ranks",
    "sent_weights": "weights of ids that the rank sends, the same on all ranks",
    "bucketized": "ids that the rank divides among the ranks that hold rows of their tables, the same on all ranks",
    "deduplicated": "ids among which the rank finds repetitions or that it divides among tiers, the same on all ranks",
    "pooled": "floats that the rank's lookups write",
    "weighted": "floats of rows that the rank looks up with a weight",
    "averaged": "floats of `pooled` that are means",
    "unpooled": "ids of sequence tables that the rank looks up",
    "returned": "floats that the rank gets back for its own samples, the same on all ranks",
    "reordered": "floats of `returned` in groups that have a table of several column shards and permute all outputs",
    "permuted": "vectors of `reordered`: samples * features of every shard",
    "joined": "floats of `returned` in modules of pooled tables with several sharding types, whose outputs are joined",
    "kernels": "number of lookup kernels of the rank, beyond one for every pair of module and sharding type",
    "gathered": "floats of `pooled` that the rank copies to one place, where such a pair has several lookup kernels",
    "expanded": "floats of rows that the rank copies to their places, if ids were deduplicated or divided among tiers",
    "converted": "floats that the rank converts to the number format of the links, or back from it",
    "host_link": "bytes that the rank's device reads from host memory",
    "replicas": "number of modules with replicas, plus modules with host tiers; each adds a lookup and an all-reduce",
    "gradients": "floats of the rank's dense gradients, of replicas and of rows in host tiers",
}

_MILLION = 1e6
_INDEX = {name: index for index, name in enumerate(QUANTITIES)}

#: Types whose ids a rank divides among the ranks that hold rows of their tables.
_BUCKETIZED = ("row_wise", "table_row_wise", "grid_shard")

#: A sharding type, or that of sequence tables that are not cut.
TorchRecType = ShardingType | Literal["table_wise"]

#: Tables of one module and sharding type of TorchRec, which share an input dist and an output dist.
Group = tuple[EmbeddingModule, TorchRecType]

#: What shards of one lookup kernel have in common: group, data type, pooling, compute kernel, and width of sequences.
Kernel = tuple[Group, str, str, str, int | None]


def group_of(shard: Shard) -> Group:
    """The group of a shard."""
    return shard.table.embedding_module, torchrec_type(shard)


def torchrec_type(shard: Shard) -> TorchRecType:
    """The sharding type that TorchRec gets for the table of a shard.

    A module's sequence tables that are column-wise must have shards of one width. A sequence table that is not cut is
    therefore table-wise, so that others of its module may be cut.
    """
    is_whole = shard.embedding_dim == shard.table.embedding_dim
    is_sequence = shard.table.pooling == "none" and shard.sharding_type == "column_wise"
    return "table_wise" if is_sequence and is_whole else shard.sharding_type


def kernel_of(shard: Shard) -> Kernel:
    """The lookup kernel of a shard on its rank [torchrec embedding_sharding.py `group_tables`].

    All sequence tables of one kernel of FBGEMM have the same width.
    """
    table = shard.table
    width = shard.embedding_dim if table.pooling == "none" else None
    return group_of(shard), table.data_type, table.pooling, table.compute_kernel, width


def shard_work(shard: Shard, task: ShardingTask) -> tuple[FloatArray, FloatArray]:
    """The work that one shard causes on its own rank, and on every rank of the task, (Q,) each.

    Numbers of modules, groups and kernels, and outputs that are reordered, joined or gathered depend on all shards: 0.

    A replica needs no exchange. Every rank has a replica of the table, and each replica accounts for `1 / world_size`
    of the work in the second array. A `host_row_wise` shard receives only ids of its host's samples.
    """
    table, share = exchanged(shard, task).table, 1.0 / task.world_size
    samples = task.batch_size / (task.num_hosts if shard.sharding_type == "host_row_wise" else 1)
    ids, bags = samples * table.pooling_factor, samples * table.num_features
    outputs = (ids if table.pooling == "none" else bags) * shard.embedding_dim
    own: dict[str, float]
    everywhere: dict[str, float]
    if shard.sharding_type == "data_parallel":
        gradients = table.num_embeddings * table.embedding_dim
        own = {"pooled": outputs * share, "weighted": ids * share * shard.embedding_dim * table.is_weighted}
        everywhere = {"returned": outputs * share**2, "gradients": gradients * share}
    else:
        ids *= shard.row_share
        own = {"bags": bags, "ids": ids, "weights": ids * table.is_weighted}
        own |= {"weighted": own["weights"] * shard.embedding_dim}
        own["pooled"] = outputs * (shard.row_share if table.pooling == "none" else 1.0)
        everywhere = {name: share * own[of] for name, of in (("sent_bags", "bags"), ("sent_ids", "ids"))}
        everywhere |= {"sent_weights": share * own["weights"], "returned": share * outputs * shard.row_share}
        everywhere["bucketized"] = everywhere["sent_ids"] * (shard.sharding_type in _BUCKETIZED)
        if shard.sharding_type == "host_row_wise":
            own["gradients"] = shard.num_rows * shard.embedding_dim
        if task.comm_share < 1:
            # A host also converts the sums that it has reduced and exchanges with other hosts.
            is_reduced = table.pooling != "none" and shard.sharding_type in ("table_row_wise", "grid_shard")
            between_hosts = 2.0 / task.ranks_per_host if is_reduced and task.num_hosts > 1 else 0.0
            own["converted"] = own["pooled"] * (1.0 + between_hosts)
            everywhere["converted"] = everywhere["returned"]
    own["averaged"] = own["pooled"] * (table.pooling == "mean")
    own["unpooled"] = own["pooled"] / shard.embedding_dim * (table.pooling == "none")
    everywhere |= _placed(shard, task)
    if table.compute_kernel != "fused":
        own["host_link"] = host_link_bytes(shard, task)
    own["features"] = _MILLION * table.num_features * (shard.sharding_type != "data_parallel")  # a number
    return _in_millions(own), _in_millions(everywhere)


def _placed(shard: Shard, task: ShardingTask) -> dict[str, float]:
    """Quantities of ids that are not sent as they are: every rank finds repetitions, or divides ids among tiers.

    A rank does this for all ids of its samples, and then copies one row per id to its place. Every shard of a table
    accounts for a part of these ids. TorchRec finds repetitions for every column shard again, because it first copies
    the ids for every column shard.
    """
    table = shard.table
    is_tier, is_sent_once = table.tier is not None, exchanged(shard, task) is not shard
    if not is_tier and not is_sent_once:
        return {}
    shards = {"data_parallel": task.world_size, "host_row_wise": task.num_hosts}.get(shard.sharding_type, 1)
    ids = task.batch_size * table.pooling_factor * shard.row_share / shards / task.world_size
    searches = is_tier * shard.embedding_dim / table.embedding_dim + is_sent_once
    return {"deduplicated": searches * ids, "expanded": (is_tier + is_sent_once) * ids * shard.embedding_dim}


def _in_millions(named: dict[str, float]) -> FloatArray:
    """All quantities, (Q,); those that are not named are 0."""
    found = np.zeros(len(QUANTITIES))
    for name, value in named.items():
        found[_INDEX[name]] = value / _MILLION
    return found


def rank_work(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> FloatArray:
    """The work of every rank (W, Q) under a plan with `shards[i]` on `ranks[i]`."""
    placed = placed_shards(shards, ranks, task.world_size)
    return work_of(placed, np.array([shard_work(shard, task) for shard in placed.shards]))


def work_of(placed: PlacedShards, works: FloatArray) -> FloatArray:
    """The work of every rank (W, Q) if the ranks hold the shards `placed`, whose `shard_work` is `works` (D, 2, Q)."""
    works = works.reshape(-1, 2, len(QUANTITIES))
    own, everywhere = works[:, 0], placed.times[:, None] * works[:, 1]
    work: FloatArray = placed.per_rank(own) + everywhere.sum(axis=0)
    kinds, kind = placed.keys(group_of)
    groups = [kinds[index] for index in kind.tolist()]
    work[:, [_INDEX["modules"], _INDEX["groups"]]] = exchange_counts(groups)
    work[:, _INDEX["replicas"]] = len({group for group in groups if group[1] in ("data_parallel", "host_row_wise")})
    returned = list(zip(placed.shards, groups, everywhere[:, _INDEX["returned"]].tolist(), strict=True))
    work[:, [_INDEX["reordered"], _INDEX["permuted"]]] = _reordered(returned)
    work[:, _INDEX["joined"]] = joined_floats(returned)
    work[:, [_INDEX["kernels"], _INDEX["gathered"]]] = _gathered(placed, own[:, _INDEX["pooled"]])
    return work


def _gathered(placed: PlacedShards, pooled: FloatArray) -> FloatArray:
    """The quantities `kernels` and `gathered` of every rank, (W, 2), from the part of `pooled` of every distinct shard.

    Source: torchrec embedding_lookup.py `GroupedPooledEmbeddingsLookup`, `embeddings_cat_empty_rank_handle`.
    """
    kernels, index = placed.keys(kernel_of)
    kernel = index[placed.number]
    is_there = np.zeros((len(kernels), placed.world_size), dtype=bool)
    is_there[kernel, placed.rank] = True
    in_group = np.array([[group == other for other, *_ in kernels] for group, *_ in kernels], dtype=float)
    of_group = in_group.reshape(len(kernels), -1) @ is_there  # (K, W) number of kernels of the same group on the rank
    beyond_one = ((of_group - 1) / np.maximum(of_group, 1) * is_there).sum(axis=0)
    floats = (of_group[kernel, placed.rank] > 1) * placed.count * pooled[placed.number]
    return np.column_stack([beyond_one, np.bincount(placed.rank, floats, placed.world_size)])


def _reordered(returned_by: Iterable[tuple[Shard, Group, float]]) -> tuple[float, float]:
    """The quantities `reordered` and `permuted`, from distinct shards, their groups and parts of `returned`."""
    reordered, permuted, cut = defaultdict[Group, float](float), defaultdict[Group, float](float), dict[Group, None]()
    for shard, group, floats in returned_by:
        if shard.sharding_type in ("column_wise", "grid_shard"):  # only these are cut by columns
            reordered[group] += floats
            permuted[group] += floats / shard.embedding_dim
            if shard.embedding_dim < shard.table.embedding_dim:
                cut[group] = None
    return sum(map(reordered.__getitem__, cut)), sum(map(permuted.__getitem__, cut))


def joined_floats(returned_by: Iterable[tuple[Shard, Group, float]]) -> float:
    """The quantity `joined` from distinct shards, their groups and parts of `returned`.

    Source: torchrec embeddingbag.py `construct_output_kt`.
    """
    returned: dict[EmbeddingModule, float] = defaultdict(float)
    types: dict[EmbeddingModule, set[TorchRecType]] = defaultdict(set)
    for _, (module, sharding_type), floats in returned_by:
        if not module.is_sequence:
            returned[module] += floats
            types[module].add(sharding_type)
    return sum(floats for module, floats in returned.items() if len(types[module]) > 1)


def exchange_counts(groups: Iterable[Group]) -> IntArray:
    """The quantities `modules` and `groups`, (2,), of shards of these groups."""
    exchanging = {group for group in groups if group[1] != "data_parallel"}
    return np.array([len({module for module, _ in exchanging}), len(exchanging)])
