"""Translates TorchRec's constraints on tables for the search. Constraints that no plan can meet are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.constraints import TABLE_WISE, Constraints, TableConstraint
from neuroshard_pipeline.tables.table import (
    COLUMN_GRANULARITY,
    COMPUTE_KERNELS,
    DEFAULT_CACHE_LOAD_FACTOR,
    SHARDING_TYPES,
    Table,
)
from neuroshard_pipeline.torchrec_plan.writer import COMPUTE_KERNEL, REPLICA_KERNEL

if TYPE_CHECKING:
    from torchrec.distributed.planner import ParameterConstraints
    from torchrec.distributed.types import ShardingPlan

    from neuroshard_pipeline.torchrec_plan.modules import ModuleTable

CACHING_KERNEL = COMPUTE_KERNELS[-1]

#: Settings of a table's kernel, which plans pass on to TorchRec.
KERNEL_SETTINGS = ("enforce_hbm", "stochastic_rounding", "bounds_check_mode")

#: Fields that plans cannot meet, and why.
_UNSUPPORTED_FIELDS = {
    "cache_params": "plans use them only if fused_uvm_caching is the table's only allowed compute kernel",
    "key_value_params": "tables are held in memory",
    "use_virtual_table": "tables have a fixed number of rows",
    "device_group": "all tables are on the devices of the topology",
    "output_dtype": "the cost models describe fp32 outputs; a qcomm_codecs_registry halves what links carry",
}


def search_constraints(constraints: Mapping[str, ParameterConstraints], tables: Collection[ModuleTable]) -> Constraints:
    """TorchRec's constraints by table, as constraints of a sharding task.

    `sharding_types` and `compute_kernels` together limit the types of a table: `data_parallel` uses the kernel `dense`,
    and all other types use one of `COMPUTE_KERNELS`. A search may move a table to host memory if all of
    `COMPUTE_KERNELS` are allowed. If `fused` is not allowed, `with_kernels` gives the table a kernel in host memory.
    `min_partition` is the least width of column shards. `pooling_factors`, `num_poolings` and `batch_sizes` are read
    with the tables, and `with_kernel_settings` passes on `KERNEL_SETTINGS`.

    Raises:
        PlanError: a constraint cannot be met, or contradicts the model; the message names its table and field.
    """
    read = {entry.table.name: entry for entry in tables}
    translated = (_translated(read[name], given) for name, given in constraints.items())
    return Constraints(tuple(entry for entry in translated if entry != TableConstraint(entry.table)))


def with_kernels(tables: Sequence[Table], constraints: Mapping[str, ParameterConstraints]) -> list[Table]:
    """The tables. A table that may not have the kernel `fused` gets the host-memory kernel that its constraint allows.

    `fused_uvm_caching` has precedence, with the load factor of the constraint's `cache_params` or TorchRec's default.
    """
    changed = []
    for table in tables:
        constraint = constraints.get(table.name)
        allowed = _kernels(constraint)
        if constraint is not None and allowed and COMPUTE_KERNEL not in allowed:
            cache = constraint.cache_params
            load_factor = cache.load_factor if cache is not None and CACHING_KERNEL in allowed else None
            table = replace(
                table,
                compute_kernel=allowed[-1],
                cache_load_factor=DEFAULT_CACHE_LOAD_FACTOR if load_factor is None else load_factor,
            )
        changed.append(table)
    return changed


def with_kernel_settings(plan: ShardingPlan, constraints: Mapping[str, ParameterConstraints]) -> ShardingPlan:
    """The plan with the `KERNEL_SETTINGS` of the constraints on its tables."""

    def settings(table: str) -> dict[str, object]:
        return {name: getattr(constraints.get(table), name, None) for name in KERNEL_SETTINGS}

    modules = {
        path: type(module)({table: replace(sharding, **settings(table)) for table, sharding in module.items()})
        for path, module in plan.plan.items()
    }
    return type(plan)(modules)


def _translated(entry: ModuleTable, constraint: ParameterConstraints) -> TableConstraint:
    table = entry.table
    is_cached = _kernels(constraint) == (CACHING_KERNEL,) and constraint.compute_kernels
    for field, reason in _UNSUPPORTED_FIELDS.items():
        value = getattr(constraint, field, None)
        if value and not (field == "cache_params" and is_cached) and getattr(value, "name", "") != "FP32":
            told = f"its constraint sets {field}, which plans cannot meet, because {reason}"
            raise PlanError(f"table {table.name!r}: {told}; leave it out")
    if constraint.is_weighted and not table.is_weighted:
        raise PlanError(f"table {table.name!r}: its constraint sets is_weighted, but its collection is not weighted")
    if constraint.feature_names and sorted(constraint.feature_names) != sorted(entry.feature_names):
        told = f"its constraint has the feature_names {constraint.feature_names}, but the model has"
        raise PlanError(f"table {table.name!r}: {told} {list(entry.feature_names)}")
    return TableConstraint(
        table.name,
        min_width=max(constraint.min_partition or COLUMN_GRANULARITY, COLUMN_GRANULARITY),
        sharding_types=_types(table.name, constraint),
        in_gpu_memory=_kernels(constraint) != COMPUTE_KERNELS,
    )


def _kernels(constraint: ParameterConstraints | None) -> tuple[str, ...]:
    """Those of `COMPUTE_KERNELS` that a constraint allows."""
    return tuple(name for name in COMPUTE_KERNELS if _allowed(name, constraint and constraint.compute_kernels))


def _types(table: str, constraint: ParameterConstraints) -> tuple[str, ...] | None:
    """The sharding types that `sharding_types` and `compute_kernels` allow; None for all."""
    if not constraint.sharding_types and not constraint.compute_kernels:
        return None
    known = (TABLE_WISE, *(name for name in SHARDING_TYPES if name != "host_row_wise"))  # not a type of TorchRec
    allowed = tuple(
        name
        for name in known
        if _allowed(name, constraint.sharding_types)
        and (_allowed(REPLICA_KERNEL, constraint.compute_kernels) if name == "data_parallel" else _kernels(constraint))
    )
    if not allowed:
        raise PlanError(
            f"table {table!r}: its constraint allows sharding_types {constraint.sharding_types or 'of any kind'} and "
            f"compute_kernels {constraint.compute_kernels or 'of any kind'}; plans use {', '.join(known)}, with the "
            f"kernel {REPLICA_KERNEL!r} for data_parallel and {', '.join(COMPUTE_KERNELS)} for all others"
        )
    return allowed


def _allowed(value: str, allowed: Collection[str] | None) -> bool:
    """Whether a constraint allows `value`; an empty list or None allows every value."""
    return not allowed or value in allowed
