"""Writes a sharding plan in TorchRec's terms, as plain values that JSON can store.

Every table is written as `column_wise`; an unsplit table gets a single shard. TorchRec runs one fused lookup and one
set of collectives per sharding type of a module, and the cost models describe one fused lookup. If unsplit tables were
table-wise, a step would run 2 lookups and 10 all-to-alls instead of 1 and 5 (TorchRec 1.8). The column-wise form adds a
copy that reorders the outputs. The copy matters only if lookups take nearly all of a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.table import Shard, Table

ComputeDevice = Literal["cuda", "cpu"]

#: The fields of a table's `ParameterSharding`.
ParameterForm = dict[str, Any]

#: The compute kernel that the cost models describe: FBGEMM's table-batched lookup with the optimizer in its backward.
COMPUTE_KERNEL = "fused"

#: The sharding type of every table that is written; the docstring of this module gives the reason.
SHARDING_TYPE = "column_wise"

#: The sharding types of TorchRec that place whole columns.
COLUMN_SHARDING_TYPES = ("table_wise", "column_wise")

_Placed = list[tuple[Shard, int]]


@dataclass(frozen=True)
class Devices:
    """The devices that the ranks of a job train their tables on.

    Attributes:
        world_size: number of ranks.
        local_world_size: ranks per host, or None where all ranks are on one host.
        compute_device: `cuda` or `cpu`.

    Raises:
        PlanError: `local_world_size` does not divide `world_size`, or the device is unknown.
    """

    world_size: int
    local_world_size: int | None = None
    compute_device: ComputeDevice = "cuda"

    def __post_init__(self) -> None:
        if self.compute_device not in ("cuda", "cpu"):
            raise PlanError(f"compute_device {self.compute_device!r} is unknown; use 'cuda' or 'cpu'")
        if self.ranks_per_host < 1 or self.world_size % self.ranks_per_host:
            raise PlanError(
                f"local_world_size {self.local_world_size} must divide the world_size {self.world_size} of the plan"
            )

    @property
    def ranks_per_host(self) -> int:
        """Ranks per host, which is `world_size` if `local_world_size` is None."""
        return self.world_size if self.local_world_size is None else self.local_world_size

    def placement(self, rank: int) -> str:
        """TorchRec's name for the device of `rank`, such as `rank:9/cuda:1` with 8 ranks per host."""
        return f"rank:{rank}/cpu" if self.compute_device == "cpu" else f"rank:{rank}/cuda:{rank % self.ranks_per_host}"


def torchrec_form(
    tables: Sequence[Table],
    shards: Sequence[Shard],
    ranks: Sequence[int],
    devices: Devices,
    module_path: str | Mapping[str, str],
) -> dict[str, dict[str, ParameterForm]]:
    """The plan in TorchRec's terms.

    Args:
        tables: all tables of the plan, in the order in which they are written.
        shards: the shards of all tables.
        ranks: `ranks[i]` is the rank of `shards[i]`.
        devices: the devices of the ranks.
        module_path: fully qualified name of the `EmbeddingBagCollection` that holds the tables, or a mapping from every
            table's name to the name of its collection.

    Returns:
        Module path → table → the fields of `ParameterSharding`, with shards in the order of their columns.

    Raises:
        PlanError: a table has no module path.
    """
    placed: dict[str, _Placed] = {table.name: [] for table in tables}
    for shard, rank in sorted(zip(shards, ranks, strict=True), key=lambda entry: entry[0].column_offset):
        placed[shard.table.name].append((shard, int(rank)))
    modules: dict[str, dict[str, ParameterForm]] = {}
    for table, entries in placed.items():
        path = module_path if isinstance(module_path, str) else module_path.get(table)
        if path is None:
            raise PlanError(f"table {table!r} has no module path; add it to module_path")
        modules.setdefault(path, {})[table] = _parameter_form(with_equal_widths(entries), devices)
    return modules


def with_equal_widths(placed: _Placed) -> _Placed:
    """The shards of one table, changed where needed so that all shards on one rank have the same width.

    TorchRec 1.8 assumes that all shards of a table on one rank are as wide as the first of them
    (`batched_embedding_kernel._gen_named_parameters_by_table_fused`). If they are not, `DistributedModelParallel`
    fails, or an `init_fn` overwrites other tables. If any rank has shards of several widths, every rank with shards
    of the table gets a single shard of the same total width. Ranks may then hold other columns than before, which
    does not change their cost. The dimension sums stay the same, and no rank needs more memory.

    Args:
        placed: the table's shards and their ranks, in the order of their columns.
    """
    widths: dict[int, list[int]] = {}
    for shard, rank in placed:
        widths.setdefault(rank, []).append(shard.embedding_dim)
    if all(len(set(on_rank)) == 1 for on_rank in widths.values()):
        return placed
    joined: _Placed = []
    offset = 0
    for rank, on_rank in widths.items():
        joined.append((Shard(placed[0][0].table, offset, sum(on_rank)), rank))
        offset += sum(on_rank)
    return joined


def _parameter_form(placed: _Placed, devices: Devices) -> ParameterForm:
    shards = [
        {
            "shard_offsets": [0, int(shard.column_offset)],
            "shard_sizes": [shard.table.num_embeddings, int(shard.embedding_dim)],
            "placement": devices.placement(rank),
        }
        for shard, rank in placed
    ]
    return {
        "sharding_type": SHARDING_TYPE,
        "compute_kernel": COMPUTE_KERNEL,
        "ranks": [rank for _, rank in placed],
        "sharding_spec": {"shards": shards},
    }
