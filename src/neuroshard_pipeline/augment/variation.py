"""Adds tables to a pool: tables that are derived from its own tables, and public table sets.

Cost models must be accurate for tables, batch sizes and data types that the pool does not have, so they are trained on
derived tables, too. To measure this accuracy, some tables of the pool are kept out of training, together with all
tables that are derived from them.

Columns that are added to a pool:

    origin           the pool table that a table was derived from; for a pool table its own name, for a public
                     table the name of its set
    batch_size       global batch size for which the table's profile holds
    data_type        storage type of the weights
    held_out         whether the table is kept out of training
    default_profile  whether the table has the default profile, like a user's table without a known profile
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Self

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from neuroshard_pipeline.augment.drawing import BatchSize, Share
from neuroshard_pipeline.augment.pool import tilted_shares
from neuroshard_pipeline.augment.published import fold
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.frames import POOL_COLUMNS, tables_from_frame, tables_to_frame
from neuroshard_pipeline.tables.ids import look_up_counts
from neuroshard_pipeline.tables.profile import batch_indices, default_profile, reuse_bin, with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table, scale_rows

_VARIATION_STREAM, _HELD_OUT_STREAM = 4, 5

#: Added to every reuse share before the profile is tilted, so that rows can move into bins that are empty.
_SMOOTHING = 0.01
_LEAST_REUSE = 1.02  # mean lookups per unique row
#: The name of a derived table is the name of its origin, this mark, and the table's batch size and number.
_DERIVED_MARK = "~"


def _valid_range(limits: tuple[float, float]) -> tuple[float, float]:
    if not 0 < limits[0] <= limits[1]:
        raise ValueError(f"{list(limits)} must be two numbers above 0, the smaller first")
    return limits


#: Smallest and largest value of a log-uniform draw.
Range = Annotated[tuple[float, float], AfterValidator(_valid_range)]


class VariationParams(Parameters):
    """Parameters of derived and public tables.

    Attributes:
        tables_per_batch_size: number of tables that are derived for each batch size, from the pool's tables in turn.
        batch_sizes: global batch sizes of training samples.
        interpolation_batch_size: a global batch size between two of `batch_sizes`; no training sample has it.
        extrapolation_batch_size: a global batch size above all `batch_sizes`.
        fp16_share: share of derived tables with 16-bit weights.
        row_factors: range of the factor that multiplies the number of rows of the origin.
        small_table_share: share of derived tables whose number of rows is drawn from `small_table_rows` instead. Such
            tables (weekdays, countries, age groups) are frequent in public data sets and rare in the pool.
        small_table_rows: range of the rows of these small tables.
        pooling_factors: range of the factor that multiplies the pooling factor of the origin.
        reuse_factors: range of the factor that multiplies the lookups per unique row, by tilting the reuse shares.
        single_valued_share: share of derived tables with exactly one id per sample, like most features of public
            data sets.
        default_profile_share: share of derived tables that have the default profile.
        held_out_share: share of the pool's tables that are kept out of training.
        public_row_scale: divisor of the rows of public tables.
        seed: seed of all draws.
    """

    tables_per_batch_size: int = Field(ge=1, le=100_000)
    batch_sizes: tuple[int, ...] = Field(min_length=2)
    interpolation_batch_size: BatchSize
    extrapolation_batch_size: BatchSize
    fp16_share: Share
    row_factors: Range
    small_table_share: Share
    small_table_rows: Range
    pooling_factors: Range
    reuse_factors: Range
    single_valued_share: Share
    default_profile_share: Share
    held_out_share: float = Field(gt=0, lt=1)
    public_row_scale: float = Field(gt=0, le=1e9)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        sizes, inner, outer = self.batch_sizes, self.interpolation_batch_size, self.extrapolation_batch_size
        if min(sizes) < 2 or len(set(sizes)) < len(sizes):
            raise ValueError(f"batch_sizes {sizes} must be at least 2 and differ from each other")
        if inner in sizes or not min(sizes) < inner < max(sizes):
            raise ValueError(f"interpolation_batch_size {inner} must lie between, and differ from, batch_sizes {sizes}")
        if outer <= max(sizes):
            raise ValueError(f"extrapolation_batch_size {outer} must lie above all batch_sizes {sizes}")
        return self


def varied_pool(
    base: pd.DataFrame, batch_size: int, public: Mapping[str, Sequence[Table]], params: VariationParams
) -> pd.DataFrame:
    """Append derived and public tables to a pool.

    Args:
        base: a pool of distinct tables, see `pool.base_pool`.
        batch_size: global batch size for which the profiles in `base` hold.
        public: public table sets by name. Their tables are called `<set>/<table>` and are all held out; those without a
            profile get the default one.
        params: parameters of the appended tables.

    Returns:
        The dataset `augment.table_pool`: the columns of `base`, and those that the module's docstring explains.
    """
    order = np.random.default_rng([_HELD_OUT_STREAM, params.seed]).permutation(len(base))
    held_out = base["table"].to_numpy()[order[: max(1, round(params.held_out_share * len(base)))]]
    frames = [base.assign(origin=base["table"], batch_size=batch_size, data_type="fp32", default_profile=False)]
    origins = tables_from_frame(base)
    for size in (*params.batch_sizes, params.interpolation_batch_size, params.extrapolation_batch_size):
        derived = _derived_tables(origins, batch_size, size, params)
        frames.append(derived.assign(origin=derived["table"].str.rsplit(_DERIVED_MARK, n=1).str[0]))
    for name, tables in public.items():
        scaled = [with_profile(scale_rows(table, params.public_row_scale), batch_size) for table in tables]
        rows = _pool_rows([replace(each, name=public_name(name, each.name)) for each in scaled], batch_size)
        frames.append(rows.assign(origin=name, default_profile=[not table.has_profile for table in tables]))
    pool = pd.concat(frames, ignore_index=True)
    pool["held_out"] = pool["origin"].isin([*held_out, *public])
    return pool[[*base.columns, "origin", "batch_size", "data_type", "held_out", "default_profile"]]


def is_held_out(pool: pd.DataFrame) -> pd.Series:
    """Whether each table of a pool is kept out of training; False for a pool without the column `held_out`."""
    if "held_out" not in pool.columns:
        return pd.Series(False, index=pool.index)
    return pool["held_out"].astype(bool)


def is_derived(names: pd.Series) -> pd.Series:
    """Whether each name is the name of a derived table."""
    return names.str.contains(_DERIVED_MARK, regex=False)


def public_name(set_name: str, table: str) -> str:
    """Name that a table of a public set has in the pool."""
    return f"{set_name}/{table}"


def _derived_tables(origins: Sequence[Table], own_batch: int, batch_size: int, params: VariationParams) -> pd.DataFrame:
    """Pool rows of the tables derived for one batch size; `origins` are used in turn, in a random order."""
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
    """Derived table `number` of a batch size.

    Its profile describes exactly the ids that `ids.draw_ids` draws for this table.
    """
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
        most_rows = rows if small else math.inf
        unique, reuse = _tilted_profile(origin, reuse_factor, indices, most_rows, own_batch, batch_size)
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
    """Unique rows and reuse shares of a derived table.

    The reuse shares of the origin are tilted until the mean number of lookups per unique row is `reuse_factor` times
    that of the origin, but at least `_LEAST_REUSE` and at most `indices / 2`. It is higher than that if there would
    otherwise be more than `most_rows` unique rows.
    """
    assert origin.unique_rows is not None and origin.reuse is not None  # noqa: PT018 (tables of a pool have both)
    own = max(batch_indices(origin.pooling_factor, own_batch), 1) / origin.unique_rows
    reuse = float(np.clip(own * reuse_factor, _LEAST_REUSE, max(indices / 2, _LEAST_REUSE)))
    reuse = max(reuse, indices / most_rows)
    weight = fold(np.asarray(origin.reuse) + _SMOOTHING, batch_size)
    return max(1.0, round(indices / reuse)), tuple(tilted_shares(weight, np.array([reuse]))[0].tolist())


def _pool_rows(tables: Sequence[Table], batch_size: int) -> pd.DataFrame:
    frame = tables_to_frame(tables)[list(POOL_COLUMNS)]
    return frame.assign(batch_size=batch_size, data_type=[table.data_type for table in tables])
