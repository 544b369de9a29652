"""Writes a sharding plan in TorchRec's terms, as plain values that JSON can store.

A table that is not cut is written as `column_wise` with a single shard. TorchRec runs one fused lookup and one set of
collectives per sharding type of a module. If uncut tables were table-wise beside column-wise ones, a step would run 2
lookups and 10 all-to-alls instead of 1 and 5 (TorchRec 1.8). The column-wise form adds a copy that reorders the
outputs. The copy matters only if lookups take nearly all of a step. A sequence table that is not cut is `table_wise`
(`tables.step_work.torchrec_type`).

TorchRec 1.8 trains some plans wrongly, and fails with others, often only during training. Both are refused here:

- a table whose rows are cut into other blocks than those of `tables.row_blocks`, or whose blocks are not in the order
  of the ranks. The ranks are all ranks of the job (`row_wise`) or of one host (`table_row_wise`, and each column block
  of `grid_shard`). TorchRec sends ids to the ranks that should have these blocks, whatever the plan says.
- a table cut by rows that leaves a rank without rows, on CPUs: FBGEMM's backward fails.
- a table in host memory, on CPUs: its compute kernel needs a GPU.
- sequence tables of other types than `tables.constraints.SEQUENCE_TYPES`, or with column shards of several widths.
- some combinations of types in a module with mean pooling (`_mean_pooling_problems`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES, TABLE_WISE
from neuroshard_pipeline.tables.row_blocks import row_blocks
from neuroshard_pipeline.tables.step_work import torchrec_type
from neuroshard_pipeline.tables.table import Shard, Table

ComputeDevice = Literal["cuda", "cuda:0", "cpu"]

#: The fields of a table's `ParameterSharding`.
ParameterForm = dict[str, Any]

#: The compute kernel that the cost models describe: FBGEMM's table-batched lookup with the optimizer in its backward.
COMPUTE_KERNEL = "fused"

#: The compute kernel of replicated tables; the optimizer of the dense network updates them.
REPLICA_KERNEL = "dense"

#: The sharding types of TorchRec that place whole columns on any ranks.
COLUMN_SHARDING_TYPES = ("table_wise", "column_wise", "table_column_wise")

#: Types for which TorchRec divides the outputs of mean-pooled tables after ranks have added up their partial sums. For
#: `grid_shard`, ranks add up partial sums, too, but TorchRec does not divide.
_REDUCED_TYPES = ("row_wise", "table_row_wise")

_Placed = list[tuple[Shard, int]]

#: First row, number of rows, first column, number of columns, and rank.
_Rectangle = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Devices:
    """The devices that the ranks of a job train their tables on.

    Attributes:
        world_size: number of ranks.
        local_world_size: ranks per host, or None if all ranks are on one host.
        compute_device: `cuda` or `cpu`; `cuda:0` if all ranks share this GPU.

    Raises:
        PlanError: `local_world_size` does not divide `world_size`, or the device is unknown.
    """

    world_size: int
    local_world_size: int | None = None
    compute_device: ComputeDevice = "cuda"

    def __post_init__(self) -> None:
        if self.compute_device not in ("cuda", "cuda:0", "cpu"):
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
        own = f"cuda:{rank % self.ranks_per_host}" if self.compute_device == "cuda" else self.compute_device
        return f"rank:{rank}/{own}"


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
        module_path: fully qualified name of the collection that holds the tables, or a mapping from every table's name
            to the name of its collection.

    Returns:
        Module path → table → the fields of `ParameterSharding`, with shards in the order of their columns and rows. A
        table in host memory with a cache also has `cache_params`, the arguments of TorchRec's `CacheParams`.

    Raises:
        PlanError: a table has no module path, or TorchRec cannot train the plan; the message names table and remedy.
    """
    placed: dict[str, _Placed] = {table.name: [] for table in tables}
    for shard, rank in zip(shards, ranks, strict=True):
        placed[shard.table.name].append((shard, int(rank)))
    modules: dict[str, dict[str, ParameterForm]] = {}
    for name, entries in placed.items():
        path = module_path if isinstance(module_path, str) else module_path.get(name)
        if path is None:
            raise PlanError(f"table {name!r} has no module path; add it to module_path")
        modules.setdefault(path, {})[name] = _parameter_form(entries, devices)
    pooling = {table.name: table.pooling for table in tables}
    for forms in modules.values():
        for problem in (*_sequence_problems(forms, pooling), *_mean_pooling_problems(forms, pooling)):
            raise PlanError(problem)
    return modules


def with_equal_widths(placed: _Placed) -> _Placed:
    """The shards of one table (in the order of their columns), changed so that those on one rank have the same width.

    TorchRec 1.8 assumes that all shards of a table on one rank are as wide as the first of them
    (`batched_embedding_kernel._gen_named_parameters_by_table_fused`). If they are not, `DistributedModelParallel`
    fails, or an `init_fn` overwrites other tables. If any rank has shards of several widths, the shards that a rank
    has of the table are joined into one of their total width, on every rank. Ranks may then hold other columns, which
    does not change their cost. The dimension sums stay the same, and no rank needs more memory.
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
    table, sharding_type = placed[0][0].table, torchrec_type(placed[0][0])
    if sharding_type == "data_parallel":
        ranks = list(range(devices.world_size))
        return _form(sharding_type, REPLICA_KERNEL, ranks, None)
    if table.is_in_host_memory and devices.compute_device == "cpu":
        raise PlanError(
            f"table {table.name!r} has compute_kernel {table.compute_kernel!r}, which keeps it in the host memory of a "
            "GPU, but the plan is for CPUs; give compute_device='cuda'"
        )
    is_by_rows = sharding_type not in COLUMN_SHARDING_TYPES
    rectangles = _row_rectangles(placed, devices) if is_by_rows else _column_rectangles(placed)
    shards = [
        {"shard_offsets": [row, column], "shard_sizes": [rows, width], "placement": devices.placement(rank)}
        for row, rows, column, width, rank in (map(int, rectangle) for rectangle in rectangles)
    ]
    form = _form(sharding_type, table.compute_kernel, [rank for *_, rank in rectangles], {"shards": shards})
    if table.compute_kernel == "fused_uvm_caching":
        form["cache_params"] = {"load_factor": table.cache_load_factor}
    return form


def _form(sharding_type: str, kernel: str, ranks: list[int], spec: Mapping[str, Any] | None) -> ParameterForm:
    return {"sharding_type": sharding_type, "compute_kernel": kernel, "ranks": ranks, "sharding_spec": spec}


def _column_rectangles(placed: _Placed) -> list[_Rectangle]:
    ordered = with_equal_widths(sorted(placed, key=lambda entry: entry[0].column_offset))
    return [(0, shard.num_rows, shard.column_offset, shard.embedding_dim, rank) for shard, rank in ordered]


def _row_rectangles(placed: _Placed, devices: Devices) -> list[_Rectangle]:
    """The rectangles of a table whose rows are cut, with rectangles of 0 rows for ranks that get none.

    Column blocks of a grid on one host must have equal widths, as column shards on one rank must.
    """
    table, sharding_type = placed[0][0].table, placed[0][0].sharding_type
    group = devices.world_size if sharding_type == "row_wise" else devices.ranks_per_host
    blocks: dict[int, _Placed] = {}
    for shard, rank in sorted(placed, key=lambda entry: (entry[0].column_offset, entry[0].row_offset)):
        blocks.setdefault(shard.column_offset, []).append((shard, rank))
    of_ranks = row_blocks(table.num_embeddings, group)
    if devices.compute_device == "cpu" and of_ranks[-1][1] == 0:
        raise PlanError(
            f"table {table.name!r} is {sharding_type}, but if its {table.num_embeddings} rows are cut over {group} "
            "ranks, some ranks get no rows, which fails on CPUs; make it column_wise or data_parallel"
        )
    for block in blocks.values():
        _check_block(block, of_ranks)
    of_blocks = ((offset, *block[0]) for offset, block in blocks.items())
    hosts = [(Shard(table, offset, first.embedding_dim), rank // group) for offset, first, rank in of_blocks]
    return [
        (row, rows, shard.column_offset, shard.embedding_dim, host * group + at)
        for shard, host in with_equal_widths(hosts)
        for at, (row, rows) in enumerate(of_ranks)
    ]


def _check_block(block: _Placed, of_ranks: Sequence[tuple[int, int]]) -> None:
    """Refuse a column block whose rows are not cut and placed as TorchRec cuts and places them."""
    first = block[0][1] // len(of_ranks) * len(of_ranks)
    expected = [(row, rows, first + at) for at, (row, rows) in enumerate(of_ranks) if rows]
    if [(shard.row_offset, shard.num_rows, rank) for shard, rank in block] != expected:
        table, name = block[0][0].table, block[0][0].sharding_type
        found = ", ".join(f"{shard.num_rows} rows on rank {rank}" for shard, rank in block[:4])
        where = f"all {len(of_ranks)} ranks{'' if name == 'row_wise' else ' of one host'}"
        raise PlanError(
            f"table {table.name!r} is {name} with {found}{' ...' if len(block) > 4 else ''}; TorchRec cuts its "
            f"{table.num_embeddings} rows into blocks of {of_ranks[0][1]} for {where} in order, and the last ranks get "
            "what is left; make the shards with tables.row_blocks.row_shards, and check local_world_size"
        )


def _sequence_problems(forms: Mapping[str, ParameterForm], pooling: Mapping[str, str]) -> Iterator[str]:
    """Sequence tables with types that TorchRec cannot train, or with column shards of several widths in one module."""
    sequences = {name: form for name, form in forms.items() if pooling[name] == "none"}
    for name, form in sequences.items():
        if form["sharding_type"] not in (*SEQUENCE_TYPES, TABLE_WISE):
            kind = f"a sequence table and {form['sharding_type']}"
            yield f"table {name!r} is {kind}, which TorchRec cannot train; make it {' or '.join(SEQUENCE_TYPES)}"
    cut = {name: form for name, form in sequences.items() if form["sharding_type"] == "column_wise"}
    widths = {shard["shard_sizes"][1]: name for name, form in cut.items() for shard in form["sharding_spec"]["shards"]}
    if len(widths) > 1:
        yield (
            f"sequence tables of one module have column shards of {' and '.join(map(str, sorted(widths)))} columns, "
            f"for example {widths[min(widths)]!r} and {widths[max(widths)]!r}; TorchRec can train only one width in a "
            "module, so give all shards the same one, or do not cut these tables"
        )


def _mean_pooling_problems(forms: Mapping[str, ParameterForm], pooling: Mapping[str, str]) -> Iterator[str]:
    """Combinations of types in one module that TorchRec 1.8 computes wrongly.

    If the rows of a mean-pooled table are cut, every rank sums up the rows that it has, and the ranks add up these
    sums. The totals must then be divided by the number of ids in each bag
    (`embeddingbag._create_mean_pooling_divisor`). TorchRec does not do this for `grid_shard` tables. For `row_wise` and
    `table_row_wise` tables it does, but it then also divides the outputs of the module's tables of other types, which
    need no division.
    """
    types = {name: form["sharding_type"] for name, form in forms.items()}
    mean = {name: sharding_type for name, sharding_type in types.items() if pooling[name] == "mean"}
    for name in (name for name, sharding_type in mean.items() if sharding_type == "grid_shard"):
        yield f"table {name!r} has mean pooling and is grid_shard, which TorchRec computes wrongly; make it column_wise"
    reduced = [name for name, sharding_type in mean.items() if sharding_type in _REDUCED_TYPES]
    others = [name for name, sharding_type in types.items() if sharding_type not in _REDUCED_TYPES]
    if reduced and others:
        yield (
            f"table {reduced[0]!r} has mean pooling and is {types[reduced[0]]}; TorchRec then computes the outputs of "
            f"{others[0]!r}, which is {types[others[0]]}, wrongly; make {reduced[0]!r} column_wise, or give all tables "
            f"of the module one of the types {' and '.join(_REDUCED_TYPES)}"
        )
