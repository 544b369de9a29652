"""What a plan's explanation says about tiers, host memory, links and replica groups."""

from collections.abc import Sequence

from neuroshard_pipeline.search.plan_data import PlanData
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import tiers_of

#: Number of tables that a line names.
_TABLES_SHOWN = 12
#: Where the rows of each kind of tier are.
_TIER_PLACES = {"hot": "on every rank", "host": "on every host", "cold": "on one rank each"}


def note_lines(plan: PlanData) -> list[str]:
    """Lines about tiers, tables in host memory, the number format on the links, and replica groups."""
    return [*_tier_lines(plan), *_host_memory_lines(plan), *_link_lines(plan.task)]


def _host_memory_lines(plan: PlanData) -> list[str]:
    """The tables in host memory, with the load factors of their caches, and the rank that needs most host memory."""
    tables = [table for table in plan.task.tables if table.is_in_host_memory]
    if not tables:
        return []
    caches = [
        f"cache for {table.cache_load_factor:.0%}" if table.compute_kernel == "fused_uvm_caching" else "no cache"
        for table in tables[:_TABLES_SHOWN]
    ]
    names = [f"{table.name} ({cache})" for table, cache in zip(tables, caches, strict=False)]
    more = f", and {len(tables) - len(names)} more" if len(tables) > len(names) else ""
    fullest = max(range(plan.task.world_size), key=lambda rank: plan.host_memory_bytes[rank])
    used, limit = (bytes_text(size or 0) for size in (plan.host_memory_bytes[fullest], plan.task.host_memory_bytes))
    return [f"in host memory: {', '.join(names)}{more}; rank {fullest} needs most, {used} of {limit}"]


def _link_lines(task: ShardingTask) -> list[str]:
    """Lines about the number format on the links, and about replica groups."""
    lines = []
    if task.comm_share < 1:
        lines.append(f"communication: rows and their gradients are {task.comm_precision} on the links")
    if task.num_replica_groups > 1:
        every = "in every step" if task.sync_interval == 1 else f"every {task.sync_interval} steps"
        lines.append(
            f"replica groups: {task.num_replica_groups} groups of {task.world_size} ranks average their weights "
            f"{every}; the cost of reductions includes one step's share of this"
        )
    return lines


def _tier_lines(plan: PlanData) -> list[str]:
    """One line per table with tiers: their rows and the ids that look them up."""
    found = tiers_of(plan.task)
    lines = [f"tiers of {name}: {', '.join(_tier_text(each, of) for each in of)}" for name, of in found.items()]
    more = [f"tiers of {len(lines) - _TABLES_SHOWN} more tables"] if len(lines) > _TABLES_SHOWN else []
    return [*lines[:_TABLES_SHOWN], *more]


def _tier_text(table: Table, tiers: Sequence[Table]) -> str:
    share = table.pooling_factor / sum(each.pooling_factor for each in tiers)
    kind = "" if table.tier is None else table.tier.kind
    return f"{kind} {table.num_embeddings:,} rows {_TIER_PLACES[kind]} ({share:.0%} of the ids)"


def bytes_text(count: int) -> str:
    """Bytes with a binary unit."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
