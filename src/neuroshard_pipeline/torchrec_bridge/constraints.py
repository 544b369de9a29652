"""TorchRec's constraints on tables: refused where no plan can keep them, else handed to the search and checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.torchrec import COLUMN_FORMS
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY
from neuroshard_pipeline.torchrec_bridge.plan_json import COMPUTE_KERNEL

if TYPE_CHECKING:
    from torchrec.distributed.planner import ParameterConstraints

_REMEDY = "give settings whose search.max_steps is 0 to keep every table whole, or relax the constraint"


def check_constraints(constraints: Mapping[str, ParameterConstraints]) -> None:
    """Refuse, before any search, what no plan of column shards with the fused kernel can keep.

    Raises:
        PlanError: names the table and its constraint.
    """
    for table, constraint in constraints.items():
        if constraint.sharding_types and not set(constraint.sharding_types) & set(COLUMN_FORMS):
            raise PlanError(
                f"table {table!r}: its constraint allows sharding_types {constraint.sharding_types}; plans are "
                f"{' or '.join(COLUMN_FORMS)}"
            )
        if constraint.compute_kernels and COMPUTE_KERNEL not in constraint.compute_kernels:
            raise PlanError(
                f"table {table!r}: its constraint allows compute_kernels {constraint.compute_kernels}; the cost models "
                f"know {COMPUTE_KERNEL!r} only"
            )
        for field in ("cache_params", "key_value_params", "device_group", "num_poolings", "batch_sizes"):
            if getattr(constraint, field, None):
                raise PlanError(f"table {table!r}: its constraint sets {field}, which plans cannot keep; leave it out")


def search_constraints(constraints: Mapping[str, ParameterConstraints], tables: Collection[str]) -> Constraints:
    """TorchRec's constraints in the search's terms: tables that stay whole, and the narrowest shards allowed.

    Args:
        constraints: TorchRec's, by table.
        tables: names of the task's tables; constraints on others concern other modules.
    """
    return Constraints(
        tuple(
            TableConstraint(
                name,
                min_width=max(constraint.min_partition or COLUMN_GRANULARITY, COLUMN_GRANULARITY),
                split=not constraint.sharding_types or "column_wise" in constraint.sharding_types,
            )
            for name, constraint in constraints.items()
            if name in tables
        )
    )


def check_plan(plan: Plan, constraints: Mapping[str, ParameterConstraints]) -> None:
    """Refuse a plan that splits a table which may not be split, or more finely than it may be.

    Raises:
        PlanError: names the table, its constraint and the remedy.
    """
    widths: dict[str, list[int]] = defaultdict(list)
    for shard in plan.shards:
        widths[shard.table.name].append(shard.embedding_dim)
    for table, constraint in constraints.items():
        split = len(widths[table]) > 1
        if split and constraint.sharding_types and "column_wise" not in constraint.sharding_types:
            raise PlanError(
                f"table {table!r}: its constraint allows sharding_types {constraint.sharding_types}, but the plan "
                f"splits it into widths {widths[table]}; {_REMEDY}"
            )
        if split and constraint.min_partition and min(widths[table]) < constraint.min_partition:
            raise PlanError(
                f"table {table!r}: its constraint sets min_partition {constraint.min_partition}, but the plan has a "
                f"shard of {min(widths[table])} columns; {_REMEDY}"
            )
