"""Describes a plan in words."""

from collections import Counter
from collections.abc import Sequence

from neuroshard_pipeline.search.assumptions import assumption_lines
from neuroshard_pipeline.search.plan_data import PlanCost, PlanData, RejectedChange
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import tiers_of

#: Number of shards that are named per rank; all further shards are only counted.
_SHARDS_SHOWN = 12
#: Where the rows of each kind of tier are.
_TIER_PLACES = {"hot": "on every rank", "host": "on every host", "cold": "on one rank each"}

#: Largest number of ranks that are described one by one; `_ranks_shown` chooses them.
_RANKS_SHOWN = 16

#: A smaller difference between predicted costs is shown as no difference.
LEAST_SHOWN_MS = 0.0005

#: An interval whose upper end is more than this multiple of the cost is not shown in numbers.
_WIDEST_INTERVAL = 10.0

#: Parts of a rank's cost: the fields of `PlanCost`, in the order in which they are shown, and their names.
_PARTS = {
    "compute_ms": "compute",
    "backward_comm_ms": "backward communication",
    "forward_comm_ms": "forward communication",
    "reduction_ms": "reductions",
    "input_dist_ms": "input dist",
    "module_ms": "TorchRec's module",
}


def explain_plan(plan: PlanData) -> str:
    """Text with the shards, memory and cost of the ranks, the slowest rank, rejected changes and assumptions."""
    lines = [_headline(plan), "", *_tier_lines(plan), *_replica_lines(plan)]
    used, limits = plan.memory_bytes, plan.memory.limits(plan.task)
    shown = _ranks_shown(plan)
    for rank in shown:
        share = f"{used[rank] / max(limits[rank], 1):.0%}"
        memory = f"{_bytes_text(used[rank])} of {_bytes_text(limits[rank])} ({share})"
        own = _own_shards(plan, rank)
        lines += [f"rank {rank}: {len(own)} shards, {_rank_text(plan, rank, memory)}", f"    {_shards_text(plan, own)}"]
    lines += [*_other_ranks_lines(plan, shown), ""]
    if plan.predicted is not None:
        lines += _cost_lines(plan, plan.predicted)
    fullest = max(range(plan.task.world_size), key=lambda rank: used[rank] / max(limits[rank], 1))
    lines.append(f"memory: rank {fullest} is the fullest, with {_bytes_text(limits[fullest] - used[fullest])} free")
    lines += [*_host_memory_lines(plan), *_link_lines(plan.task)]
    lines.append(f"columns per rank: largest / mean = {_max_over_mean(plan.dim_sums):.3f}")
    if plan.predicted is not None:
        lines += [_change_line(change, plan.predicted) for change in plan.rejected]
    return "\n".join([*lines, *assumption_lines(plan)])


def _ranks_shown(plan: PlanData) -> list[int]:
    """All ranks, or the most expensive ones of many; without predicted costs, those that use most memory."""
    ranks = range(plan.task.world_size)
    load = plan.memory_bytes if plan.predicted is None else plan.predicted.rank_ms
    return sorted(sorted(ranks, key=lambda rank: -load[rank])[:_RANKS_SHOWN])


def _other_ranks_lines(plan: PlanData, shown: Sequence[int]) -> list[str]:
    """One line about the ranks that are not described."""
    others = sorted(set(range(plan.task.world_size)) - set(shown))
    if not others:
        return []
    shards = [len(_own_shards(plan, rank)) for rank in others]
    used = [plan.memory_bytes[rank] for rank in others]
    text = f"{len(others)} other ranks: {min(shards)} to {max(shards)} shards, {_bytes_text(min(used))} to "
    text += _bytes_text(max(used))
    if plan.predicted is None:
        return [text]
    costs = [plan.predicted.rank_ms[rank] for rank in others]
    return [f"{text}; {min(costs):.3f} to {max(costs):.3f} ms"]


def _own_shards(plan: PlanData, rank: int) -> list[Shard]:
    """The shards of a rank without replicas."""
    return [shard for shard in plan.shards_by_rank[rank] if shard.sharding_type != "data_parallel"]


def _replica_lines(plan: PlanData) -> list[str]:
    """One line about the tables that every rank has a replica of."""
    replicas = [shard for shard in plan.shards_by_rank[0] if shard.sharding_type == "data_parallel"]
    return [f"on every rank (data_parallel): {_shards_text(plan, replicas)}"] if replicas else []


def _host_memory_lines(plan: PlanData) -> list[str]:
    """The tables in host memory, with the load factors of their caches, and the rank that needs most host memory."""
    tables = [table for table in plan.task.tables if table.is_in_host_memory]
    if not tables:
        return []
    caches = [
        f"cache for {table.cache_load_factor:.0%}" if table.compute_kernel == "fused_uvm_caching" else "no cache"
        for table in tables[:_SHARDS_SHOWN]
    ]
    names = [f"{table.name} ({cache})" for table, cache in zip(tables, caches, strict=False)]
    more = f", and {len(tables) - len(names)} more" if len(tables) > len(names) else ""
    fullest = max(range(plan.task.world_size), key=lambda rank: plan.host_memory_bytes[rank])
    used, limit = (_bytes_text(size or 0) for size in (plan.host_memory_bytes[fullest], plan.task.host_memory_bytes))
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
    lines = [f"tiers of {name}: {', '.join(map(_tier_text, of, _shares(of)))}" for name, of in found.items()]
    more = [f"tiers of {len(lines) - _SHARDS_SHOWN} more tables"] if len(lines) > _SHARDS_SHOWN else []
    return [*lines[:_SHARDS_SHOWN], *more]


def _tier_text(table: Table, share: float) -> str:
    kind = "" if table.tier is None else table.tier.kind
    return f"{kind} {table.num_embeddings:,} rows {_TIER_PLACES[kind]} ({share:.0%} of the ids)"


def _shares(tiers: Sequence[Table]) -> list[float]:
    ids = [table.pooling_factor for table in tiers]
    return [each / sum(ids) for each in ids]


def _headline(plan: PlanData) -> str:
    task = plan.task
    cost = "no predicted cost" if plan.predicted is None else f"predicted {plan.predicted_cost_ms:.3f} ms per iteration"
    return (
        f"{task.task_id}: {_num_tables(plan)} tables in {len(plan.shards)} shards ({_splits_text(plan)}) on "
        f"{task.world_size} ranks by {plan.sharder}, batch size {task.batch_size}: {cost}"
    )


def _num_tables(plan: PlanData) -> int:
    """Number of tables of the model."""
    return len({table.name if table.tier is None else table.tier.parent for table in plan.task.tables})


def _splits_text(plan: PlanData) -> str:
    """Number of column splits, and of tables of every other sharding type."""
    kinds = {shard.table.name: shard.sharding_type for shard in plan.shards}
    columns = [shard for shard in plan.shards if shard.sharding_type == "column_wise"]
    splits = len(columns) - len({shard.table.name for shard in columns})
    others: Counter[str] = Counter(kind for kind in kinds.values() if kind != "column_wise")
    counts = (f"{others[kind]} {kind}" for kind in SHARDING_TYPES if others[kind])
    return ", ".join([f"{splits} column splits", *counts])


def _rank_text(plan: PlanData, rank: int, memory: str) -> str:
    text = f"{plan.dim_sums[rank]} columns, {memory}"
    if plan.predicted is None:
        return text
    cost = plan.predicted
    terms = " + ".join(f"{name} {ms[rank]:.3f}" for name, ms in part_costs(cost).items())
    text += f"; {terms} = {cost.rank_ms[rank]:.3f} ms"
    if not plan.interval_ms:
        return text
    low, high = plan.interval_ms[rank]
    if high > _WIDEST_INTERVAL * cost.rank_ms[rank]:
        return f"{text} (90 % prediction interval: too wide, it ends above {_WIDEST_INTERVAL:g} times the cost)"
    return f"{text} (90 % prediction interval: {low:.3f} to {high:.3f})"


def part_costs(cost: PlanCost) -> dict[str, tuple[float, ...]]:
    """Cost of every rank by the name of the part, without parts that have no price or that the plan does not have."""
    return {name: ms for field, name in _PARTS.items() if (ms := getattr(cost, field))}


def _shards_text(plan: PlanData, shards: Sequence[Shard]) -> str:
    ordered = sorted(shards, key=lambda shard: -plan.memory.shard_bytes(shard, plan.task))
    more = f", and {len(ordered) - _SHARDS_SHOWN} more" if len(ordered) > _SHARDS_SHOWN else ""
    return ", ".join(map(_shard_text, ordered[:_SHARDS_SHOWN])) + more if ordered else "(empty)"


def _shard_text(shard: Shard) -> str:
    """Name of the table; in brackets, the shard's columns unless it has all, and rows and type if the type cuts rows.

    Columns alone are written as in Python: `clicks[0:16]`.
    """
    table, end = shard.table, shard.column_offset + shard.embedding_dim
    columns = f"{shard.column_offset}:{end}" if shard.embedding_dim < table.embedding_dim else ""
    if shard.sharding_type in ("column_wise", "data_parallel"):
        return f"{table.name}[{columns}]" if columns else table.name
    rows = f"rows {shard.row_offset}:{shard.row_offset + shard.num_rows} of {table.num_embeddings}"
    return f"{table.name}[{', '.join([*([f'columns {columns}'] if columns else []), rows, shard.sharding_type])}]"


def _cost_lines(plan: PlanData, cost: PlanCost) -> list[str]:
    """The slowest rank, the uncertainty about which rank it is, and the balance of compute."""
    ranks = range(plan.task.world_size)
    slowest = max(ranks, key=lambda rank: cost.rank_ms[rank])
    busiest = max(ranks, key=lambda rank: cost.compute_ms[rank])
    parts = {name: ms[slowest] for name, ms in part_costs(cost).items()}
    largest = max(parts, key=lambda part: parts[part])
    lines = [
        f"slowest rank: rank {slowest} with {cost.rank_ms[slowest]:.3f} ms; its largest part is {largest} "
        f"({parts[largest]:.3f} ms, {parts[largest] / max(cost.rank_ms[slowest], 1e-12):.0%})",
        f"compute per rank: largest / mean = {_max_over_mean(cost.compute_ms):.3f}; rank {busiest} has the largest, "
        f"{cost.compute_ms[busiest]:.3f} ms",
    ]
    if plan.interval_ms and len(ranks) > 1:
        others = sum(plan.interval_ms[rank][1] >= cost.rank_ms[slowest] for rank in ranks if rank != slowest)
        who = {0: "no other rank has", 1: "one other rank has"}.get(others, f"{others} other ranks have")
        reach = f"a 90 % prediction interval that reaches the predicted cost of rank {slowest}"
        lines.insert(1, f"uncertainty: {who} {reach}")
    return lines


def _change_line(change: RejectedChange, cost: PlanCost) -> str:
    """A change that the plan does not make, with the predicted embedding cost after it."""
    more = change.cost_ms - cost.embedding_cost_ms
    difference = f"{more:+.3f} ms" if abs(more) >= LEAST_SHOWN_MS else "no difference"
    result = f"{change.text}; the predicted cost would be {change.cost_ms:.3f} ms ({difference})"
    if change.hindrance:
        return f"cheaper, but not allowed: {result}; {change.hindrance}"
    if more <= -LEAST_SHOWN_MS:
        return f"cheaper and allowed, but not made: {result}"
    return f"no allowed single change is cheaper; the best one found: {result}"


def _max_over_mean(values: tuple[float, ...]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean if mean > 0 else 1.0


def _bytes_text(count: int) -> str:
    """Bytes with a binary unit."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
