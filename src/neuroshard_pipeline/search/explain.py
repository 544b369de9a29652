"""Describes a plan in words."""

from collections.abc import Sequence

from neuroshard_pipeline.search.plan import Plan, PlanCost, RejectedChange
from neuroshard_pipeline.tables.table import Shard

#: Number of shards that are named per rank; the others are only counted.
_SHARDS_SHOWN = 12


def explain_plan(plan: Plan) -> str:
    """Text with the shards, memory and cost of every rank, the slowest rank, rejected changes and assumptions."""
    lines = [_headline(plan), ""]
    used, limits = plan.memory_bytes, plan.memory.limits(plan.task)
    for rank, shards in enumerate(plan.shards_by_rank):
        share = f"{used[rank] / max(limits[rank], 1):.0%}"
        memory = f"{_bytes_text(used[rank])} of {_bytes_text(limits[rank])} ({share})"
        lines += [_rank_line(plan, rank, memory), f"    {_shards_text(plan, shards)}"]
    lines.append("")
    if plan.predicted is not None:
        lines += _cost_lines(plan, plan.predicted)
    fullest = max(range(plan.task.world_size), key=lambda rank: used[rank] / max(limits[rank], 1))
    lines.append(f"memory: rank {fullest} is the fullest, with {_bytes_text(limits[fullest] - used[fullest])} free")
    lines.append(f"columns per rank: largest / mean = {_max_over_mean(plan.dim_sums):.3f}")
    if plan.predicted is not None:
        lines += [_change_line(change, plan.predicted) for change in plan.rejected]
    return "\n".join([*lines, *_assumption_lines(plan)])


def _headline(plan: Plan) -> str:
    task = plan.task
    split = len(plan.shards) - len(task.tables)
    cost = "no predicted cost" if plan.predicted is None else f"predicted {plan.predicted_cost_ms:.3f} ms per iteration"
    return (
        f"{task.task_id}: {len(task.tables)} tables in {len(plan.shards)} shards ({split} column splits) on "
        f"{task.world_size} ranks by {plan.sharder}, batch size {task.batch_size}: {cost}"
    )


def _rank_line(plan: Plan, rank: int, memory: str) -> str:
    text = f"rank {rank}: {len(plan.shards_by_rank[rank])} shards, {plan.dim_sums[rank]} columns, {memory}"
    if plan.predicted is None:
        return text
    cost = plan.predicted
    text += (
        f"; compute {cost.compute_ms[rank]:.3f} + backward communication {cost.backward_comm_ms[rank]:.3f} + forward "
        f"communication {cost.forward_comm_ms[rank]:.3f} = {cost.rank_ms[rank]:.3f} ms"
    )
    if not plan.interval_ms:
        return text
    low, high = plan.interval_ms[rank]
    return f"{text} (90 % prediction interval: {low:.3f} to {high:.3f})"


def _shards_text(plan: Plan, shards: Sequence[Shard]) -> str:
    names = [
        shard.table.name
        if shard.embedding_dim == shard.table.embedding_dim
        else f"{shard.table.name}[{shard.column_offset}:{shard.column_offset + shard.embedding_dim}]"
        for shard in sorted(shards, key=lambda shard: -plan.memory.shard_bytes(shard, plan.task))
    ]
    more = f", and {len(names) - _SHARDS_SHOWN} more" if len(names) > _SHARDS_SHOWN else ""
    return ", ".join(names[:_SHARDS_SHOWN]) + more if names else "(empty)"


def _cost_lines(plan: Plan, cost: PlanCost) -> list[str]:
    """The slowest rank, the uncertainty about which rank it is, and the balance of compute."""
    ranks = range(plan.task.world_size)
    slowest = max(ranks, key=lambda rank: cost.rank_ms[rank])
    busiest = max(ranks, key=lambda rank: cost.compute_ms[rank])
    parts = {
        "compute": cost.compute_ms[slowest],
        "backward communication": cost.backward_comm_ms[slowest],
        "forward communication": cost.forward_comm_ms[slowest],
    }
    largest = max(parts, key=lambda part: parts[part])
    lines = [
        f"slowest rank: rank {slowest} with {cost.rank_ms[slowest]:.3f} ms; its largest part is {largest} "
        f"({parts[largest]:.3f} ms)",
        f"compute per rank: largest / mean = {_max_over_mean(cost.compute_ms):.3f}; rank {busiest} has the largest, "
        f"{cost.compute_ms[busiest]:.3f} ms",
    ]
    if plan.interval_ms:
        others = sum(plan.interval_ms[rank][1] >= cost.rank_ms[slowest] for rank in ranks if rank != slowest)
        lines.insert(
            1,
            f"uncertainty: the 90 % prediction intervals of {others} other ranks reach the predicted cost of rank "
            f"{slowest}",
        )
    return lines


def _change_line(change: RejectedChange, cost: PlanCost) -> str:
    """A change that the plan does not make, with the predicted embedding cost after it."""
    more = change.cost_ms - cost.embedding_cost_ms
    difference = f"{more:+.3f} ms" if abs(more) >= 0.0005 else "no difference"
    result = f"{change.text}; the predicted cost would be {change.cost_ms:.3f} ms ({difference})"
    if change.hindrance:
        return f"cheaper, but not allowed: {result}; {change.hindrance}"
    return f"best single change not made: {result}"


def _assumption_lines(plan: Plan) -> list[str]:
    """Tables without a known reuse profile, modelled costs, and inputs outside the training range of the models."""
    assumed = [table.name for table in plan.task.tables if not table.has_profile]
    if not assumed:
        return ["reuse profiles: given for every table", *plan.caveats]
    shown = ", ".join(assumed[:_SHARDS_SHOWN]) + (", ..." if len(assumed) > _SHARDS_SHOWN else "")
    return [f"reuse profiles: assumed for {len(assumed)} of {len(plan.task.tables)} tables: {shown}", *plan.caveats]


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
