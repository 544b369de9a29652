"""Embedding tables, their reuse profiles, and shards: rectangles of their rows and columns."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Literal, get_args

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.curve_points import CurvePoints, curve_problems, scaled_points
from neuroshard_pipeline.tables.kinds import EmbeddingModule, Tier

#: Upper edges of the first 16 reuse bins; the 17th has no upper edge. The bin of a row contains its number of lookups
#: per batch: (0,1], (1,2], (2,4] ... (16384,32768], >32768 (facebookresearch/dlrm_datasets, locality_stats.txt).
REUSE_BIN_EDGES: tuple[int, ...] = tuple(2**power for power in range(16))
NUM_REUSE_BINS = len(REUSE_BIN_EDGES) + 1
REUSE_COLUMNS: tuple[str, ...] = tuple(f"reuse_{index:02d}" for index in range(NUM_REUSE_BINS))

#: Columns of a reuse profile in files and frames.
PROFILE_COLUMNS: tuple[str, ...] = ("unique_rows", *REUSE_COLUMNS)
POPULARITY_COLUMN = "popularity"

#: Widths of shards are multiples of this, because FBGEMM reads rows in 16-byte vectors of four floats.
COLUMN_GRANULARITY = 4

#: Bytes per element of every storage type that a table may have (TorchRec's DataType names in lower case).
BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "fp16": 2}
DEFAULT_DATA_TYPE = "fp32"

#: How a table reduces the rows of one sample: to their sum, to their mean, or not at all (a sequence table, which
#: TorchRec holds in an `EmbeddingCollection`).
POOLINGS: tuple[str, ...] = ("sum", "mean", "none")

#: TorchRec's names of the ways to shard a table. A table that is not cut is `column_wise` with a single shard, because
#: TorchRec then looks it up together with the column shards of other tables (`torchrec_plan.writer`). TorchRec has no
#: `host_row_wise`: every host holds all rows of such a table (a `host` tier, see `kinds`), cut over its ranks.
ShardingType = Literal["column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel", "host_row_wise"]
SHARDING_TYPES: tuple[ShardingType, ...] = get_args(ShardingType)

#: TorchRec's names of the kernels of sharded tables. The last two keep the weights in host memory
#: (`tables.host_memory`); the last one has a cache of rows in GPU memory.
COMPUTE_KERNELS: tuple[str, ...] = ("fused", "fused_uvm", "fused_uvm_caching")

#: TorchRec's default share of rows that a cache has room for [UVM_CACHING_RATIO; FBGEMM cache_load_factor].
DEFAULT_CACHE_LOAD_FACTOR = 0.2

#: Optional columns of files and frames, and their defaults. A frame has such a column only if a table needs it.
TABLE_DEFAULTS: dict[str, str | int | float | bool] = {
    "data_type": DEFAULT_DATA_TYPE,
    "pooling": "sum",
    "module": "",
    "num_features": 1,
    "is_weighted": False,
    "compute_kernel": COMPUTE_KERNELS[0],
    "cache_load_factor": DEFAULT_CACHE_LOAD_FACTOR,
}

#: A table whose rows are scaled down keeps at least this many rows.
LEAST_SCALED_ROWS = 4

MAX_NUM_EMBEDDINGS = 2**40
MAX_EMBEDDING_DIM = 2**14
MAX_POOLING_FACTOR = 2.0**20
MAX_NUM_FEATURES = 2**16


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table as a model declares it, and statistics of the ids that look up its rows.

    Attributes:
        name: name, unique within a sharding task.
        num_embeddings: number of rows.
        embedding_dim: number of columns, a multiple of 4.
        pooling_factor: mean number of ids per sample of the batch.
        unique_rows: number of distinct rows that one batch looks up, or None if unknown. It refers to the batch size
            of the task or pool that the table belongs to.
        reuse: the reuse profile: the share of `unique_rows` in each of the 17 reuse bins (see `REUSE_BIN_EDGES`); the
            shares sum to 1. None if unknown.
        data_type: storage type of the weights, a key of `BYTES_PER_ELEMENT`.
        pooling: one of `POOLINGS`.
        module: name of the embedding module that holds the table. Tables of one module and sharding type share
            collectives, and usually a kernel if they also have the same data type and pooling (`step_work.kernel_of`).
        num_features: number of features whose ids look up the table; `pooling_factor` is the sum over all of them.
        is_weighted: whether every id has a weight.
        compute_kernel: one of `COMPUTE_KERNELS`, for types other than `data_parallel`.
        cache_load_factor: share of the rows that the cache of `fused_uvm_caching` has room for.
        tier: which rows of another table this one holds, or None if it is a table of the model.
        popularity: points of the popularity curve of future ids (`tables.curve_points`), such as one that was counted
            in many batches. None if the curve has to be derived from the reuse profile.
        has_assumed_profile: whether `profile.with_profile` has given the profile; `==` and `repr` ignore it.

    Raises:
        TaskError: a value is impossible; the message names table, field, value and remedy.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    pooling_factor: float
    unique_rows: float | None = None
    reuse: tuple[float, ...] | None = None
    data_type: str = DEFAULT_DATA_TYPE
    pooling: str = "sum"
    module: str = ""
    num_features: int = 1
    is_weighted: bool = False
    compute_kernel: str = COMPUTE_KERNELS[0]
    cache_load_factor: float = DEFAULT_CACHE_LOAD_FACTOR
    tier: Tier | None = None
    popularity: CurvePoints | None = None
    has_assumed_profile: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("num_embeddings", "embedding_dim", "num_features"):
            value = getattr(self, name)
            if isinstance(value, Integral) and not isinstance(value, bool):
                object.__setattr__(self, name, int(value))  # NumPy's integers would overflow in products
        for problem in _table_problems(self):
            raise TaskError(f"table {self.name!r}: {problem}")

    def __repr__(self) -> str:
        optional = ("pooling", "module", "num_features", "is_weighted", "compute_kernel", "cache_load_factor", "tier")
        return _shown(self, optional, ("popularity", "has_assumed_profile"))  # no measurement depends on these

    @property
    def has_profile(self) -> bool:
        """Whether there is a reuse profile, known or assumed; `profile.with_profile` gives a default one."""
        return self.reuse is not None

    @property
    def embedding_module(self) -> EmbeddingModule:
        """TorchRec's module of the table; tables that name the default path are in that of tables that name none."""
        return EmbeddingModule.of(self.module, self.pooling == "none", self.is_weighted)

    @property
    def is_in_host_memory(self) -> bool:
        """Whether the weights are in host memory."""
        return self.compute_kernel != COMPUTE_KERNELS[0]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, without optimizer state."""
        return self.num_embeddings * self.embedding_dim * BYTES_PER_ELEMENT[self.data_type]


@dataclass(frozen=True, slots=True)
class Shard:
    """A rectangle of a table: some of its columns of some of its rows, which one rank holds.

    Attributes:
        table: the table.
        column_offset: first column.
        embedding_dim: number of columns, a multiple of 4.
        row_offset: first row.
        num_rows: number of rows; None stands for all rows from `row_offset` on.
        sharding_type: the way in which the whole table is sharded (`SHARDING_TYPES`). A `data_parallel` table has one
            shard with all rows and columns on every rank. A `host_row_wise` table has row shards on every host.

    Raises:
        TaskError: the rectangle does not lie inside the table, or its type does not cut tables in this way.
    """

    table: Table
    column_offset: int
    embedding_dim: int
    row_offset: int = 0
    num_rows: int = None  # type: ignore[assignment]  # a number after __post_init__
    sharding_type: ShardingType = "column_wise"

    def __post_init__(self) -> None:
        if self.num_rows is None:
            object.__setattr__(self, "num_rows", self.table.num_embeddings - self.row_offset)
        for problem in _shard_problems(self):
            raise TaskError(f"table {self.table.name!r}: {problem}")

    def __repr__(self) -> str:
        has_all_rows = self.num_rows == self.table.num_embeddings
        return _shown(self, ("row_offset", "sharding_type"), ("num_rows",) if has_all_rows else ())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the shard's weights, without optimizer state."""
        return self.num_rows * self.embedding_dim * BYTES_PER_ELEMENT[self.table.data_type]

    @property
    def row_share(self) -> float:
        """Share of the table's rows that the shard has."""
        return self.num_rows / self.table.num_embeddings


def whole(table: Table, sharding_type: ShardingType = "column_wise") -> Shard:
    """The shard of all rows and columns of `table`."""
    return Shard(table, 0, table.embedding_dim, sharding_type=sharding_type)


def first_part(table: Table, halvings: int) -> Shard:
    """The first of `2**halvings` column shards of a table, or the narrowest possible one."""
    return Shard(table, 0, max((table.embedding_dim >> halvings) // COLUMN_GRANULARITY, 1) * COLUMN_GRANULARITY)


def _shown(record: Table | Shard, optional: Collection[str], hidden: Collection[str] = ()) -> str:
    """The `repr` of a table or shard without the `hidden` fields, and without `optional` fields of default value.

    Measured samples are recognised by a hash of this text. Stored measurements therefore stay valid if a new field is
    `optional`.
    """
    values = ((each, getattr(record, each.name)) for each in fields(record) if each.name not in hidden)
    shown = (f"{f.name}={value!r}" for f, value in values if f.name not in optional or value != f.default)
    return f"{type(record).__name__}({', '.join(shown)})"


def scale_rows(table: Table, row_scale: float) -> Table:
    """A copy of `table` whose numbers of rows, also in profile and popularity curve, are divided by `row_scale`.

    The copy keeps at least `LEAST_SCALED_ROWS` rows, or all rows of a table that has fewer. Its number of unique rows
    is at least 1 and at most its number of rows.
    """
    least = min(table.num_embeddings, LEAST_SCALED_ROWS)
    rows = max(least, round(table.num_embeddings / row_scale))
    unique_rows = None if table.unique_rows is None else min(max(table.unique_rows / row_scale, 1.0), float(rows))
    popularity = table.popularity and scaled_points(table.popularity, rows / table.num_embeddings)
    return replace(table, num_embeddings=rows, unique_rows=unique_rows, popularity=popularity)


def _table_problems(table: Table) -> Iterator[str]:
    """Descriptions of impossible values, in the order of the fields."""
    if not isinstance(table.name, str) or not table.name.strip():
        yield "the name must be a string that is not empty; give every table a unique name"
    yield from count_problems("num_embeddings", table.num_embeddings, MAX_NUM_EMBEDDINGS)
    yield from count_problems("embedding_dim", table.embedding_dim, MAX_EMBEDDING_DIM)
    padded = -(-table.embedding_dim // COLUMN_GRANULARITY) * COLUMN_GRANULARITY
    if table.embedding_dim < padded:
        yield f"embedding_dim {table.embedding_dim} is no multiple of {COLUMN_GRANULARITY}; pad the table to {padded}"
    if not isinstance(table.pooling_factor, Real) or not 0 < table.pooling_factor <= MAX_POOLING_FACTOR:  # or NaN
        yield f"pooling_factor {table.pooling_factor} must be a number above 0 and at most {MAX_POOLING_FACTOR:g}"
    if table.data_type not in BYTES_PER_ELEMENT:
        yield f"data_type {table.data_type!r} is unknown; use one of {', '.join(BYTES_PER_ELEMENT)}"
    if table.pooling not in POOLINGS:
        yield f"pooling {table.pooling!r} is unknown; use one of {', '.join(POOLINGS)}"
    if not isinstance(table.module, str):
        yield f"module {table.module!r} is not a string; give the name of the embedding module that holds the table"
    yield from count_problems("num_features", table.num_features, MAX_NUM_FEATURES)
    yield from _kernel_problems(table)
    if table.tier is not None and table.pooling != "none":
        yield f"pooling {table.pooling!r} does not allow a tier; only sequence tables (pooling none) have tiers"
    yield from _profile_problems(table)
    if table.popularity is not None:
        yield from curve_problems(table.popularity, table.num_embeddings)


def _kernel_problems(table: Table) -> Iterator[str]:
    if table.compute_kernel not in COMPUTE_KERNELS:
        yield f"compute_kernel {table.compute_kernel!r} is unknown; use one of {', '.join(COMPUTE_KERNELS)}"
    if not isinstance(table.cache_load_factor, Real) or not 0 < table.cache_load_factor <= 1:  # also refuses NaN
        yield f"cache_load_factor {table.cache_load_factor!r} must be a number above 0 and at most 1"
    if table.compute_kernel != COMPUTE_KERNELS[2] and table.cache_load_factor != DEFAULT_CACHE_LOAD_FACTOR:
        yield f"compute_kernel {table.compute_kernel!r} has no cache; leave out cache_load_factor"


def count_problems(field: str, value: object, most: int, least: int = 1) -> Iterator[str]:
    """A description if `value` is not a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        yield f"{field} {value!r:.60} must be a whole number from {least} to {most}"


def _profile_problems(table: Table) -> Iterator[str]:
    if table.unique_rows is None and table.reuse is None:
        return
    if table.unique_rows is None or table.reuse is None:
        yield "unique_rows and reuse_00..reuse_16 belong together; give all of them or none"
        return
    if not 0 < table.unique_rows <= table.num_embeddings:
        yield f"unique_rows {table.unique_rows} must be above 0 and at most num_embeddings {table.num_embeddings}"
    if len(table.reuse) != NUM_REUSE_BINS:
        yield f"the reuse profile needs {NUM_REUSE_BINS} shares, not {len(table.reuse)}"
    for column, share in zip(REUSE_COLUMNS, table.reuse, strict=True):
        if not 0 <= share <= 1:
            yield f"{column} {share} is not a share between 0 and 1; give the share of unique rows in this reuse bin"
    if not math.isclose(sum(table.reuse), 1.0, abs_tol=0.01):
        yield f"the reuse shares sum to {sum(table.reuse):.4f}, not to 1; divide them by their sum"


def _shard_problems(shard: Shard) -> Iterator[str]:
    """Descriptions of why the rectangle is impossible."""
    table, end = shard.table, shard.column_offset + shard.embedding_dim
    if shard.column_offset < 0 or shard.embedding_dim <= 0 or end > table.embedding_dim:
        yield f"shard columns {shard.column_offset}..{end} lie outside the table's 0..{table.embedding_dim}"
    if shard.embedding_dim % COLUMN_GRANULARITY:
        yield f"shard width {shard.embedding_dim} is not a multiple of {COLUMN_GRANULARITY}"
    end = shard.row_offset + shard.num_rows
    if shard.row_offset < 0 or shard.num_rows <= 0 or end > table.num_embeddings:
        yield f"shard rows {shard.row_offset}..{end} lie outside the table's 0..{table.num_embeddings}"
    if shard.sharding_type not in SHARDING_TYPES:
        yield f"sharding_type {shard.sharding_type!r} is unknown; use one of {', '.join(SHARDING_TYPES)}"
    if shard.sharding_type in ("column_wise", "data_parallel") and shard.num_rows < table.num_embeddings:
        yield f"{shard.sharding_type} shards have all {table.num_embeddings} rows of the table, not {shard.num_rows}"
    if shard.sharding_type not in ("column_wise", "grid_shard") and shard.embedding_dim < table.embedding_dim:
        yield f"{shard.sharding_type} shards have all {table.embedding_dim} columns, not {shard.embedding_dim}"
