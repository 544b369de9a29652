"""Embedding tables, their reuse profiles, and shards of their columns."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral, Real

from neuroshard_pipeline.errors import TaskError

#: Upper edges of the first 16 reuse bins; the 17th has no upper edge. The bin of a row contains its number of lookups
#: per batch: (0,1], (1,2], (2,4] ... (16384,32768], >32768 (facebookresearch/dlrm_datasets, locality_stats.txt).
REUSE_BIN_EDGES: tuple[int, ...] = tuple(2**power for power in range(16))
NUM_REUSE_BINS = len(REUSE_BIN_EDGES) + 1
REUSE_COLUMNS: tuple[str, ...] = tuple(f"reuse_{index:02d}" for index in range(NUM_REUSE_BINS))

#: Columns of a reuse profile in files and frames.
PROFILE_COLUMNS: tuple[str, ...] = ("unique_rows", *REUSE_COLUMNS)

#: Widths of shards are multiples of this, because FBGEMM reads rows in 16-byte vectors of four floats.
COLUMN_GRANULARITY = 4

#: Bytes per element of every storage type that a table may have (TorchRec's DataType names in lower case).
BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "fp16": 2}
DEFAULT_DATA_TYPE = "fp32"

#: A table whose rows are scaled down keeps at least this many rows.
LEAST_SCALED_ROWS = 4

MAX_NUM_EMBEDDINGS = 2**40
MAX_EMBEDDING_DIM = 2**14
MAX_POOLING_FACTOR = 2.0**20


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

    def __post_init__(self) -> None:
        for field in ("num_embeddings", "embedding_dim"):
            value = getattr(self, field)
            if isinstance(value, Integral) and not isinstance(value, bool):
                object.__setattr__(self, field, int(value))  # NumPy's integers would overflow in products
        for problem in _table_problems(self):
            raise TaskError(f"table {self.name!r}: {problem}")

    @property
    def has_profile(self) -> bool:
        """Whether the reuse profile is known; otherwise `profile.with_profile` gives a default profile."""
        return self.reuse is not None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, without optimizer state."""
        return self.num_embeddings * self.embedding_dim * BYTES_PER_ELEMENT[self.data_type]


@dataclass(frozen=True, slots=True)
class Shard:
    """The columns from `column_offset` up to, but not including, `column_offset + embedding_dim` of a table."""

    table: Table
    column_offset: int
    embedding_dim: int

    def __post_init__(self) -> None:
        end = self.column_offset + self.embedding_dim
        if self.column_offset < 0 or self.embedding_dim <= 0 or end > self.table.embedding_dim:
            raise TaskError(
                f"table {self.table.name!r}: shard columns {self.column_offset}..{end} lie outside the table's "
                f"0..{self.table.embedding_dim}"
            )
        if self.embedding_dim % COLUMN_GRANULARITY:
            raise TaskError(
                f"table {self.table.name!r}: shard width {self.embedding_dim} is not a multiple of {COLUMN_GRANULARITY}"
            )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the shard's weights, without optimizer state."""
        return self.table.num_embeddings * self.embedding_dim * BYTES_PER_ELEMENT[self.table.data_type]


def whole(table: Table) -> Shard:
    """The shard of all columns of `table`."""
    return Shard(table, 0, table.embedding_dim)


def scale_rows(table: Table, row_scale: float) -> Table:
    """A copy of `table` with its rows, and the unique rows of its profile, divided by `row_scale`.

    The copy keeps at least `LEAST_SCALED_ROWS` rows, or all rows of a table that has fewer. Its number of unique rows
    is at least 1 and at most its number of rows.
    """
    least = min(table.num_embeddings, LEAST_SCALED_ROWS)
    rows = max(least, round(table.num_embeddings / row_scale))
    unique_rows = None if table.unique_rows is None else min(max(table.unique_rows / row_scale, 1.0), float(rows))
    return replace(table, num_embeddings=rows, unique_rows=unique_rows)


def _table_problems(table: Table) -> Iterator[str]:
    """Descriptions of impossible values, in the order of the fields."""
    if not isinstance(table.name, str) or not table.name.strip():
        yield "the name is empty; give every table a unique name"
    yield from _count_problems("num_embeddings", table.num_embeddings, MAX_NUM_EMBEDDINGS)
    yield from _count_problems("embedding_dim", table.embedding_dim, MAX_EMBEDDING_DIM)
    if table.embedding_dim % COLUMN_GRANULARITY:
        yield (
            f"embedding_dim {table.embedding_dim} is not a multiple of {COLUMN_GRANULARITY}; pad the table to "
            f"{-(-table.embedding_dim // COLUMN_GRANULARITY) * COLUMN_GRANULARITY}"
        )
    if not isinstance(table.pooling_factor, Real):
        yield f"pooling_factor {table.pooling_factor!r} is not a number"
    elif not 0 < table.pooling_factor <= MAX_POOLING_FACTOR:  # also refuses NaN
        yield f"pooling_factor {table.pooling_factor} must be above 0 and at most {MAX_POOLING_FACTOR:g}"
    if table.data_type not in BYTES_PER_ELEMENT:
        yield f"data_type {table.data_type!r} is unknown; use one of {', '.join(BYTES_PER_ELEMENT)}"
    yield from _profile_problems(table)


def _count_problems(field: str, value: int, maximum: int) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{field} {value!r} is not a whole number"
    elif not 0 < value <= maximum:
        yield f"{field} {value} must be between 1 and {maximum}"


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
