"""Translates TorchRec's constraints on tables for the search. Constraints that no plan can meet are refused."""

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

    `sharding_types` without `column_wise` keeps a table whole; `min_partition` is the least width of its shards.

    Raises:
        PlanError: a constraint cannot be met by column shards with the fused kernel; the message names its table.
    """
    return Constraints(tuple(_translated(table, constraint) for table, constraint in constraints.items()))


def _translated(table: str, constraint: ParameterConstraints) -> TableConstraint:
    if not any(_allowed(sharding_type, constraint.sharding_types) for sharding_type in COLUMN_SHARDING_TYPES):
        raise PlanError(
            f"table {table!r}: its constraint allows sharding_types {constraint.sharding_types}; plans use "
            f"{' or '.join(COLUMN_SHARDING_TYPES)} only"
        )
    if not _allowed(COMPUTE_KERNEL, constraint.compute_kernels):
        raise PlanError(
            f"table {table!r}: its constraint allows compute_kernels {constraint.compute_kernels}; the cost models "
            f"describe {COMPUTE_KERNEL!r} only"
        )
    for field in _UNSUPPORTED_FIELDS:
        if getattr(constraint, field, None):
            raise PlanError(f"table {table!r}: its constraint sets {field}, which plans cannot meet; leave it out")
    min_width = max(constraint.min_partition or COLUMN_GRANULARITY, COLUMN_GRANULARITY)
    return TableConstraint(table, min_width=min_width, split=_allowed("column_wise", constraint.sharding_types))


def _allowed(value: str, allowed: Collection[str] | None) -> bool:
    """Whether a constraint allows `value`; an empty list or None allows every value."""
    return not allowed or value in allowed
