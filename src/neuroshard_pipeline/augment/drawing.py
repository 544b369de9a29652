"""Parameter types and helpers for all draws of samples and tasks: redraws, and limits on the number of tables.

Every table of the pool can be drawn with every width of `dimensions`; a pair of table and width is an *augmented
table* [Zha2023] §3.1.
"""

import math
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.host import ranks_side_by_side
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, MAX_EMBEDDING_DIM

Drawn = TypeVar("Drawn")

#: Maximum number of draws of one sample or task; a draw that exceeds the memory is repeated.
MAX_REDRAWS = 1000


def _all_different(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(dimensions)) < len(dimensions):
        raise ValueError(f"dimensions {dimensions} must differ from each other")
    return dimensions


Dimension = Annotated[int, Field(gt=0, le=MAX_EMBEDDING_DIM, multiple_of=COLUMN_GRANULARITY)]

#: Widths that a table may be drawn with, all different.
Dimensions = Annotated[tuple[Dimension, ...], Field(min_length=1), AfterValidator(_all_different)]

#: Number of ranks; a single rank exchanges nothing.
WorldSize = Annotated[int, Field(ge=2, le=4096)]
WorldSizes = Annotated[tuple[WorldSize, ...], Field(min_length=1)]
#: Numbers of ranks; null stands for the one that this machine runs side by side (`host.ranks_side_by_side`).
WorldSizesHere = Annotated[
    WorldSizes, BeforeValidator(lambda sizes: (ranks_side_by_side(),) if sizes is None else sizes)
]
WorldSizeHere = Annotated[WorldSize, BeforeValidator(lambda size: ranks_side_by_side() if size is None else size)]

BatchSize = Annotated[int, Field(ge=1, le=2**24)]
TableCount = Annotated[int, Field(ge=1, le=10_000)]
Share = Annotated[float, Field(ge=0, le=1)]


class TableLimits(Parameters):
    """Base class of parameters for draws whose number of tables is proportional to the number of ranks.

    Attributes:
        dimensions: widths of the tables, drawn uniformly.
        min_tables_per_4_ranks: smallest number of tables for every 4 ranks.
        max_tables_per_4_ranks: largest number of tables for every 4 ranks.
    """

    dimensions: Dimensions
    min_tables_per_4_ranks: TableCount
    max_tables_per_4_ranks: TableCount

    def table_limits(self, world_size: int) -> tuple[int, int]:
        """Smallest and largest number of tables for `world_size` ranks, both at least 1."""
        per_4_ranks = (self.min_tables_per_4_ranks, self.max_tables_per_4_ranks)
        least, most = (max(1, round(count * world_size / 4)) for count in per_4_ranks)
        return least, most


def check_pool_size(name: str, wanted: int, available: int, remedy: str) -> None:
    """Refuse to draw more distinct augmented tables (`wanted`) than the pool has; the error calls them `name`.

    Raises:
        TaskError: `wanted` exceeds `available`; the message says to lower the parameters `remedy`.
    """
    if wanted > available:
        pool = f"the {available} augmented tables of the pool (tables times dimensions)"
        raise TaskError(f"{name} {wanted} exceeds {pool}; lower {remedy} or generate a larger pool")


def redraw_until_fits(
    draw: Callable[[], Drawn], needed_bytes: Callable[[Drawn], float], available_bytes: int, name: str
) -> Drawn:
    """Call `draw` until its result needs at most `available_bytes`, and return this result.

    A tight task whose tables all fit a rank needs infinitely many bytes.

    Raises:
        TaskError: none of `MAX_REDRAWS` results fits; the message starts with `name`.
    """
    least = math.inf
    for _ in range(MAX_REDRAWS):
        drawn = draw()
        needed = needed_bytes(drawn)
        if needed <= available_bytes:
            return drawn
        least = min(least, needed)
    if least == math.inf:  # only tight tasks
        raise TaskError(
            f"{name}: none of {MAX_REDRAWS} random draws has a table that exceeds the memory of a rank; ask for fewer "
            "tables, or raise memory_fill"
        )
    raise TaskError(
        f"{name}: {MAX_REDRAWS} random draws all need more memory than the {available_bytes} available bytes (the "
        f"smallest needs {least}); raise memory_bytes, ask for fewer tables, or scale the pool's rows down"
    )
