"""A plan in words."""

from collections.abc import Sequence

from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.table import Shard

#: Number of shards that are named per rank; the others are only counted.
_SHARDS_SHOWN = 12


def explain_plan(plan: Plan) -> str:
    """Text with shards, memory and cost per rank, what limits the plan, the best changes not made, and assumptions."""
    lines = [_headline(plan), ""]
    used, limits = plan.memory_bytes, plan.memory.limits(plan.task)
    for rank, shards in enumerate(plan.shards_by_rank):
        lines.append(_rank_line(plan, rank, shards, _share_text(used[rank], limits[rank])))
        lines.append(f"    {_shards_text(plan, shards)}")
    lines += ["", *_binding_lines(plan), *_rejection_lines(plan), *_assumption_lines(plan)]
    return "\n".join(lines)


def _headline(plan: Plan) -> str:
    task = plan.task
    split = len(plan.shards) - len(task.tables)
    cost = "no predicted cost" if plan.predicted is None else f"predicted {plan.predicted_cost_ms:.3f} ms per iteration"
    return (
        f"{task.task_id}: {len(task.tables)} tables in {len(plan.shards)} shards ({split} column splits) on "
        f"{task.world_size} ranks by {plan.sharder}, batch size {task.batch_size}: {cost}"
    )


def _rank_line(plan: Plan, rank: int, shards: Sequence[Shard], memory: str) -> str:
    columns = sum(shard.embedding_dim for shard in shards)
    text = f"rank {rank}: {len(shards)} shards, {columns} columns, {memory}"
    if plan.predicted is None:
        return text
    cost = plan.predicted
    return text + (
        f"; compute {cost.compute_ms[rank]:.3f} + backward communication {cost.backward_comm_ms[rank]:.3f} + forward "
        f"communication {cost.forward_comm_ms[rank]:.3f} = {cost.rank_ms[rank]:.3f} ms{_interval_text(plan, rank)}"
    )


def _interval_text(plan: Plan, rank: int) -> str:
    if not plan.interval_ms:
        return ""
    low, high = plan.interval_ms[rank]
    return f" (90 %: {low:.3f} to {high:.3f})"


def _share_text(used: int, limit: int) -> str:
    return f"{_bytes_text(used)} of {_bytes_text(limit)} ({used / max(limit, 1):.0%})"


def _shards_text(plan: Plan, shards: Sequence[Shard]) -> str:
    names = [
        shard.table.name
        if shard.embedding_dim == shard.table.embedding_dim
        else f"{shard.table.name}[{shard.column_offset}:{shard.column_offset + shard.embedding_dim}]"
        for shard in sorted(shards, key=lambda shard: -plan.memory.shard_bytes(shard, plan.task))
    ]
    more = f", and {len(names) - _SHARDS_SHOWN} more" if len(names) > _SHARDS_SHOWN else ""
    return ", ".join(names[:_SHARDS_SHOWN]) + more if names else "(empty)"


def _binding_lines(plan: Plan) -> list[str]:
    """The rank and the part of the cost that decide the embedding cost, and the rank closest to its memory limit."""
    used, limits = plan.memory_bytes, plan.memory.limits(plan.task)
    fullest = max(range(plan.task.world_size), key=lambda rank: used[rank] / max(limits[rank], 1))
    left = _bytes_text(limits[fullest] - used[fullest])
    lines = [f"memory: rank {fullest} is the fullest, {left} left"]
    lines.append(f"columns: max / mean over ranks is {_max_over_mean(plan.dim_sums):.3f}")
    if plan.predicted is not None:
        lines = [*_cost_lines(plan.predicted), *_doubt_lines(plan, plan.predicted), *lines]
    return lines


def _doubt_lines(plan: Plan, cost: PlanCost) -> list[str]:
    """The number of other ranks that may be the slowest in reality."""
    if not plan.interval_ms:
        return []
    slowest = max(range(len(cost.rank_ms)), key=lambda rank: cost.rank_ms[rank])
    rivals = [rank for rank, (_, high) in enumerate(plan.interval_ms) if high >= cost.rank_ms[slowest]]
    others = len([rank for rank in rivals if rank != slowest])
    return [f"doubt: the 90 % intervals of {others} other ranks reach the predicted cost of rank {slowest}"]


def _cost_lines(cost: PlanCost) -> list[str]:
    slowest = max(range(len(cost.rank_ms)), key=lambda rank: cost.rank_ms[rank])
    busiest = max(range(len(cost.compute_ms)), key=lambda rank: cost.compute_ms[rank])
    parts = {
        "compute": cost.compute_ms[slowest],
        "backward communication": cost.backward_comm_ms[slowest],
        "forward communication": cost.forward_comm_ms[slowest],
    }
    largest = max(parts, key=lambda part: parts[part])
    return [
        f"what binds: rank {slowest} with {cost.rank_ms[slowest]:.3f} ms, the largest part {largest} "
        f"({parts[largest]:.3f} ms)",
        f"compute: rank {busiest} is the busiest with {cost.compute_ms[busiest]:.3f} ms; max / mean over ranks is "
        f"{_max_over_mean(cost.compute_ms):.3f}",
    ]


def _rejection_lines(plan: Plan) -> list[str]:
    """The best allowed change not made, and a better one that memory or constraints rule out."""
    if plan.predicted is None:
        return []
    lines = []
    for change in plan.rejected:
        more = change.cost_ms - plan.predicted.embedding_cost_ms
        difference = f"{more:+.3f} ms" if abs(more) >= 0.0005 else "no difference"
        cost = f"{change.cost_ms:.3f} ms ({difference})"
        if change.hindrance:
            lines.append(f"ruled out: {change.text}, which would give {cost}; {change.hindrance}")
        else:
            lines.append(f"best single change not made: {change.text}, which would give {cost}")
    return lines


def _assumption_lines(plan: Plan) -> list[str]:
    """Assumptions of the prediction: unknown reuse profiles, and inputs outside the training range of the models."""
    extrapolated = [f"extrapolated: {caveat}" for caveat in plan.caveats]
    assumed = [table.name for table in plan.task.tables if not table.has_profile]
    if not assumed:
        return ["reuse profiles: given for every table", *extrapolated]
    shown = ", ".join(assumed[:_SHARDS_SHOWN]) + (", ..." if len(assumed) > _SHARDS_SHOWN else "")
    return [f"reuse profiles: assumed for {len(assumed)} of {len(plan.task.tables)} tables: {shown}", *extrapolated]


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
