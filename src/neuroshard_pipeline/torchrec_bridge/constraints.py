"""TorchRec's constraints on tables: refused where no plan can meet them, otherwise translated for the search."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY
from neuroshard_pipeline.torchrec_plan.writer import COLUMN_SHARDING_TYPES, COMPUTE_KERNEL

if TYPE_CHECKING:
    from torchrec.distributed.planner import ParameterConstraints

_UNSUPPORTED_FIELDS = ("cache_params", "key_value_params", "device_group", "num_poolings", "batch_sizes")


def search_constraints(constraints: Mapping[str, ParameterConstraints]) -> Constraints:
    """TorchRec's constraints by table, as constraints of a sharding task.

    `sharding_types` without `column_wise` keeps a table whole; `min_partition` is the width of its narrowest shard.

    Raises:
        PlanError: a constraint cannot be met by column shards with the fused kernel; the message names its table.
    """
    for table, constraint in constraints.items():
        _check(table, constraint)
    return Constraints(
        tuple(
            TableConstraint(
                table,
                min_width=max(constraint.min_partition or COLUMN_GRANULARITY, COLUMN_GRANULARITY),
                split=_allowed("column_wise", constraint.sharding_types),
            )
            for table, constraint in constraints.items()
        )
    )


def _check(table: str, constraint: ParameterConstraints) -> None:
    """Refuse a constraint that no plan of column shards with the fused kernel meets."""
    if not any(_allowed(sharding_type, constraint.sharding_types) for sharding_type in COLUMN_SHARDING_TYPES):
        raise PlanError(
            f"table {table!r}: its constraint allows sharding_types {constraint.sharding_types}; plans are "
            f"{' or '.join(COLUMN_SHARDING_TYPES)}"
        )
    if not _allowed(COMPUTE_KERNEL, constraint.compute_kernels):
        raise PlanError(
            f"table {table!r}: its constraint allows compute_kernels {constraint.compute_kernels}; the cost models "
            f"describe {COMPUTE_KERNEL!r} only"
        )
    for field in _UNSUPPORTED_FIELDS:
        if getattr(constraint, field, None):
            raise PlanError(f"table {table!r}: its constraint sets {field}, which plans cannot meet; leave it out")


def _allowed(value: str, allowed: Collection[str] | None) -> bool:
    """Whether a constraint allows `value`; an empty list or None allows every value."""
    return not allowed or value in allowed
