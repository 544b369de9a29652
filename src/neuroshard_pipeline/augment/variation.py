"""Tables that no pool has: every generated table is varied in rows, pooling factor, reuse, batch size and data type.

Cost models that are to hold for tables, batches and trainers that they never saw need samples of such; and to tell
whether they hold, some generated tables are kept out of training together with everything derived from them.

A pool's extra columns:

    origin      the generated table that a table was derived from; its own name for a generated table, and the name of
                the set for a public one
    batch_size  the global batch that its profile belongs to
    data_type   storage type of its weights
    held_out    whether no training sample may have it
    default_profile     whether it has the default profile, as a user's table of which no more is known
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.augment.pool import tilted_shares
from neuroshard_pipeline.augment.published import fold
from neuroshard_pipeline.tables.frames import POOL_COLUMNS, tables_from_frame, tables_to_frame
from neuroshard_pipeline.tables.ids import look_up_counts
from neuroshard_pipeline.tables.profile import batch_indices, default_profile, reuse_bin, with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table, scale_rows

_VARIATION_STREAM, _HELD_OUT_STREAM = 4, 5

#: Added to every reuse share before it is tilted, so that a table may get rows in bins that it had none in.
_SMOOTHING = 0.01
_LEAST_REUSE = 1.02
#: Stands between the origin's name and what tells the tables derived from it apart.
_DERIVED_MARK = "~"


class VariationParams(BaseModel):
    """How generated tables are varied, and what is kept for judging.

    Attributes:
        tables_per_batch_size: tables derived for each of `batch_sizes`, from generated tables by turns.
        batch_sizes: global batches that training samples of derived tables have.
        between_batch_size: a batch among `batch_sizes` that no training sample has, for interpolation.
        beyond_batch_size: a batch above all `batch_sizes`, for extrapolation.
        fp16_share: share of derived tables that store 16-bit floats.
        row_factors: rows are those of the origin times a factor between these two (log-uniform), as are the next two.
        small_table_share: share of derived tables with a number of rows that no origin has a say in, such as those of
            weekdays, countries or age groups, which many public data sets are full of.
        small_table_rows: their rows, between these two (log-uniform).
        pooling_factors: for the pooling factor.
        reuse_factors: for the look-ups per unique row; the profile is tilted until they are met.
        single_valued_share: share of derived tables with exactly one id per sample, as most features of public
            data sets have.
        default_profile_share: share of derived tables that have the default profile instead, as a user's tables get it.
        held_out_share: share of generated tables that no training sample has.
        public_row_scale: rows of the public table sets are divided by this.
        seed: decides all of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables_per_batch_size: int = Field(ge=1, le=100_000)
    batch_sizes: tuple[int, ...] = Field(min_length=2)
    between_batch_size: int = Field(ge=2, le=2**24)
    beyond_batch_size: int = Field(ge=2, le=2**24)
    fp16_share: float = Field(ge=0, le=1)
    row_factors: tuple[float, float]
    small_table_share: float = Field(ge=0, le=1)
    small_table_rows: tuple[float, float]
    pooling_factors: tuple[float, float]
    reuse_factors: tuple[float, float]
    single_valued_share: float = Field(ge=0, le=1)
    default_profile_share: float = Field(ge=0, le=1)
    held_out_share: float = Field(gt=0, lt=1)
    public_row_scale: float = Field(gt=0, le=1e9)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> VariationParams:
        if min(self.batch_sizes) < 2 or len(set(self.batch_sizes)) < len(self.batch_sizes):
            raise ValueError(f"batch_sizes {self.batch_sizes} must be at least 2 and differ from each other")
        if self.between_batch_size in self.batch_sizes or not (
            min(self.batch_sizes) < self.between_batch_size < max(self.batch_sizes)
        ):
            raise ValueError(f"between_batch_size {self.between_batch_size} must lie between two of {self.batch_sizes}")
        if self.beyond_batch_size <= max(self.batch_sizes):
            raise ValueError(f"beyond_batch_size {self.beyond_batch_size} must lie above all of {self.batch_sizes}")
        for name in ("row_factors", "small_table_rows", "pooling_factors", "reuse_factors"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} [{low}, {high}] must be two numbers above 0, the smaller first")
        return self


def varied_pool(
    generated: pd.DataFrame, batch_size: int, public: Mapping[str, Sequence[Table]], params: VariationParams
) -> pd.DataFrame:
    """A generated pool, the tables derived from it, and public tables.

    Args:
        generated: `pool.generate_pool`.
        batch_size: that its profiles belong to.
        public: table sets by name; their tables are called `<set>/<table>`, get the default profile where they have
            none, and are all held out.
        params: what to derive.

    Returns:
        `augment.table_pool`: the columns of `generated` and `origin, batch_size, data_type, held_out,
        default_profile`.
    """
    held_out = _held_out(generated["table"].tolist(), params)
    pool = generated.assign(
        origin=generated["table"],
        batch_size=batch_size,
        data_type="fp32",
        held_out=generated["table"].isin(held_out),
        default_profile=False,
    )
    origins = tables_from_frame(generated)
    derived = [
        _derived_tables(origins, batch_size, other, params)
        for other in (*params.batch_sizes, params.between_batch_size, params.beyond_batch_size)
    ]
    for frame in derived:
        frame["origin"] = frame["table"].str.rsplit(_DERIVED_MARK, n=1).str[0]
        frame["held_out"] = frame["origin"].isin(held_out)
    sets = [
        _pool_rows([_public(table, name, batch_size, params) for table in tables], batch_size).assign(
            origin=name, held_out=True, default_profile=[not table.has_profile for table in tables]
        )
        for name, tables in public.items()
    ]
    return pd.concat([pool, *(frame[pool.columns] for frame in (*derived, *sets))], ignore_index=True)


def _held_out(names: Sequence[str], params: VariationParams) -> set[str]:
    """A fixed random choice of generated tables, at least one."""
    rng = np.random.default_rng([_HELD_OUT_STREAM, params.seed])
    count = max(1, round(params.held_out_share * len(names)))
    return {names[index] for index in rng.permutation(len(names))[:count]}


def _derived_tables(origins: Sequence[Table], own_batch: int, batch_size: int, params: VariationParams) -> pd.DataFrame:
    """Rows of the pool for the tables of one batch size, from generated tables by turns in a random order."""
    rng = np.random.default_rng([_VARIATION_STREAM, params.seed, batch_size])
    order = rng.permutation(len(origins))
    default = rng.random(params.tables_per_batch_size) < params.default_profile_share
    tables = [
        _derived(origins[order[number % len(order)]], number, bool(default[number]), own_batch, batch_size, params)
        for number in range(params.tables_per_batch_size)
    ]
    return _pool_rows(tables, batch_size).assign(default_profile=default)


def _derived(
    origin: Table, number: int, default: bool, own_batch: int, batch_size: int, params: VariationParams
) -> Table:
    """The table number `number` of a batch size; its profile is what `ids.draw_ids` draws from it, exactly."""
    rng = np.random.default_rng([_VARIATION_STREAM, params.seed, batch_size, number])
    row_factor, small_rows, pooling_factor, reuse_factor = (
        float(np.exp(rng.uniform(np.log(low), np.log(high))))
        for low, high in (params.row_factors, params.small_table_rows, params.pooling_factors, params.reuse_factors)
    )
    shares = params.single_valued_share, params.fp16_share, params.small_table_share
    single, half, small = rng.random(3) < shares
    indices = batch_size if single else max(1, batch_indices(origin.pooling_factor * pooling_factor, batch_size))
    rows = max(1, round(small_rows if small else origin.num_embeddings * row_factor))
    if default:
        unique, reuse = default_profile(rows, indices / batch_size, batch_size)
    else:
        most = rows if small else math.inf
        unique, reuse = _tilted_profile(origin, reuse_factor, indices, most, own_batch, batch_size)
    table = Table(
        name=f"{origin.name}{_DERIVED_MARK}{batch_size}-{number:04d}",
        num_embeddings=max(rows, round(unique)),
        embedding_dim=origin.embedding_dim,
        pooling_factor=indices / batch_size,
        unique_rows=unique,
        reuse=reuse,
        data_type="fp16" if half else "fp32",
    )
    bins = np.bincount(reuse_bin(look_up_counts(table, indices)), minlength=NUM_REUSE_BINS)
    return replace(table, unique_rows=float(bins.sum()), reuse=tuple((bins / bins.sum()).tolist()))


def _tilted_profile(
    origin: Table, reuse_factor: float, indices: int, most_rows: float, own_batch: int, batch_size: int
) -> tuple[float, tuple[float, ...]]:
    """Unique rows, at most so many, and the shares of the origin's profile tilted until that many share the ids."""
    assert origin.unique_rows is not None and origin.reuse is not None  # noqa: PT018 (a generated table has both)
    own = max(batch_indices(origin.pooling_factor, own_batch), 1) / origin.unique_rows
    reuse = float(np.clip(own * reuse_factor, _LEAST_REUSE, max(indices / 2, _LEAST_REUSE)))
    reuse = max(reuse, indices / most_rows)
    weight = fold(np.asarray(origin.reuse) + _SMOOTHING, batch_size)
    return max(1.0, round(indices / reuse)), tuple(tilted_shares(weight, np.array([reuse]))[0].tolist())


def is_held_out(pool: pd.DataFrame) -> pd.Series:
    """Which tables of a pool no training sample may have; none where nothing says so."""
    if "held_out" not in pool.columns:
        return pd.Series(False, index=pool.index)
    return pool["held_out"].astype(bool)


def is_derived(names: pd.Series) -> pd.Series:
    """Which names are those of derived tables."""
    return names.str.contains(_DERIVED_MARK, regex=False)


def _public(table: Table, set_name: str, batch_size: int, params: VariationParams) -> Table:
    scaled = scale_rows(table, params.public_row_scale)
    return replace(with_profile(scaled, batch_size), name=public_name(set_name, table.name))


def public_name(set_name: str, table: str) -> str:
    """How the pool calls a table of a public set."""
    return f"{set_name}/{table}"


def _pool_rows(tables: Sequence[Table], batch_size: int) -> pd.DataFrame:
    frame = tables_to_frame(tables)[list(POOL_COLUMNS)]
    return frame.assign(batch_size=batch_size, data_type=[table.data_type for table in tables])
