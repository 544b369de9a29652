"""Describes a plan in words: ten lines first, then the tables by cost, then the ranks in groups of equal ones."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from neuroshard_pipeline.search.assumptions import assumption_lines
from neuroshard_pipeline.search.notes import bytes_text, note_lines
from neuroshard_pipeline.search.plan_data import PlanCost, PlanData, RejectedChange
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Shard

#: Number of shards that are named per rank, and of tables that are named; all further ones are only counted.
_SHARDS_SHOWN = 12
#: Largest number of groups of equal ranks that are described one by one, those with the most expensive ranks.
_GROUPS_SHOWN = 16

#: A smaller difference between predicted costs is shown as no difference.
LEAST_SHOWN_MS = 0.0005

#: An interval whose upper end is more than this multiple of the cost is not shown in numbers.
_WIDEST_INTERVAL = 10.0

#: Parts of a rank's cost, in the order in which they are shown, and their names.
PART_NAMES = {
    "compute": "compute",
    "backward_comm": "backward communication",
    "forward_comm": "forward communication",
    "reduction": "reductions",
    "input_dist": "input dist",
    "module": "TorchRec's module",
}


def explain_plan(plan: PlanData, rivals: Sequence[PlanData] = ()) -> str:
    """Text with a summary, the tables by cost, the ranks, rejected changes and assumptions.

    The summary compares the plan's cost with those of `rivals`, plans of other sharders for the same task.
    """
    lines = [*summary_lines(plan, rivals), "", *_table_lines(plan), "", *_rank_lines(plan), "", *note_lines(plan)]
    if plan.predicted is not None:
        lines += [_change_line(change, plan.predicted) for change in plan.rejected]
    return "\n".join([*lines, *assumption_lines(plan)])


def summary_lines(plan: PlanData, rivals: Sequence[PlanData] = ()) -> list[str]:
    """At most ten lines: cost, rivals, sharding types, what limits the plan, memory and balance."""
    used, limits = plan.memory_bytes, plan.memory.limits(plan.task)
    fullest = max(range(plan.task.world_size), key=lambda rank: used[rank] / max(limits[rank], 1))
    memory = f"{bytes_text(used[fullest])} of {bytes_text(limits[fullest])}"
    balances: dict[str, Sequence[float]] = {"columns": plan.dim_sums, "memory": used}
    lines = [_headline(plan)]
    if plan.predicted is not None:
        balances["compute"] = plan.predicted.compute_ms
        lines += [*_cost_lines(plan, plan.predicted), *_rival_lines(plan, rivals)]
    return [
        *lines,
        f"sharding types: {_types_text(plan)}",
        f"memory: rank {fullest} is the fullest, with {memory} ({used[fullest] / max(limits[fullest], 1):.0%}), "
        f"{bytes_text(limits[fullest] - used[fullest])} free",
        f"balance, largest rank / mean: {', '.join(f'{name} {_balance(of):.3f}' for name, of in balances.items())}",
    ]


def _rival_lines(plan: PlanData, rivals: Sequence[PlanData]) -> list[str]:
    """The predicted costs of other plans for the same task, the cheapest first, relative to this plan's cost."""
    own, told = plan.predicted_cost_ms or 0.0, []
    for cost, name in sorted((rival.predicted_cost_ms or 0.0, rival.sharder) for rival in rivals):
        told.append(f"{name} {cost:.3f} ms ({cost / max(own, 1e-12) - 1:+.0%})")
    return [f"other sharders on this task, predicted: {', '.join(told)}"] if told else []


def table_rows(plan: PlanData) -> list[tuple[str, ...]]:
    """Name, size, memory, lookups, share of all lookups, sharding type, and ranks of every table, by cost.

    The cost of a table is the sum of the lookups of its shards, each of them alone on its rank.
    """
    of: dict[str, list[int]] = defaultdict(list)
    for index, shard in enumerate(plan.shards):
        of[shard.table.name].append(index)
    cost_ms = {name: sum(plan.lookup_ms[i] for i in own) if plan.lookup_ms else 0.0 for name, own in of.items()}
    total_ms = sum(cost_ms.values()) or 1.0
    sizes = {name: sum(plan.memory.shard_bytes(plan.shards[i], plan.task) for i in own) for name, own in of.items()}
    found = list[tuple[str, ...]]()
    for name in sorted(of, key=lambda name: (-cost_ms[name], -sizes[name])):
        shard, ranks = plan.shards[of[name][0]], sorted({plan.ranks[i] for i in of[name]})
        kind = shard.sharding_type if len(of[name]) == 1 else f"{shard.sharding_type} in {len(of[name])} shards"
        size = f"{shard.table.num_embeddings:,} x {shard.table.embedding_dim}"
        costs = (f"{cost_ms[name]:.3f}", f"{cost_ms[name] / total_ms:.1%}") if plan.lookup_ms else ("", "")
        found.append((name, size, bytes_text(sizes[name]), *costs, kind, numbers_text(ranks)))
    return found


def _table_lines(plan: PlanData) -> list[str]:
    """The most expensive tables, and the number of the others."""
    rows = table_rows(plan)
    lines = [
        f"  {name}: {f'lookups {ms} ms ({share})' if ms else size}, {memory}, {kind}, {ranks_text(ranks)}"
        for name, size, memory, ms, share, kind, ranks in rows[:_SHARDS_SHOWN]
    ]
    more = [f"  and {len(rows) - _SHARDS_SHOWN} more"] if len(rows) > _SHARDS_SHOWN else []
    by = "lookup time, each shard alone on its rank" if plan.lookup_ms else "memory"
    return [f"tables by {by}:", *lines, *more]


def numbers_text(numbers: Sequence[int]) -> str:
    """Ascending numbers, neighbours as a range: `0-3, 7`."""
    starts = [at for at, number in enumerate(numbers) if at == 0 or number != numbers[at - 1] + 1]
    runs = [(numbers[at], numbers[end - 1]) for at, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def ranks_text(numbers: str) -> str:
    """`rank 3`, or `ranks 0-3, 7`."""
    return f"rank{'' if numbers.isdecimal() else 's'} {numbers}"


def _rank_lines(plan: PlanData) -> list[str]:
    """Memory, parts of the cost and shards of the ranks, in groups of equal ones; of many groups, the dearest ones."""
    used, limits = plan.memory_bytes, plan.memory.limits(plan.task)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in range(plan.task.world_size):
        own = _own_shards(plan, rank)
        text = f"{used[rank] / max(limits[rank], 1):.0%} of {bytes_text(limits[rank])}{_rank_text(plan, rank)}"
        groups[text, _shards_text(plan, own)].append(rank)
    load = used if plan.predicted is None else plan.predicted.rank_ms
    shown = sorted(groups, key=lambda key: -load[groups[key][0]])[:_GROUPS_SHOWN]
    replicas = [shard for shard in plan.shards_by_rank[0] if shard.sharding_type == "data_parallel"]
    lines = [f"on every rank (data_parallel): {_shards_text(plan, replicas)}"] if replicas else []
    for text, shards in sorted(shown, key=lambda key: groups[key][0]):
        ranks = groups[text, shards]
        size = f"{len(_own_shards(plan, ranks[0]))} shards, {plan.dim_sums[ranks[0]]} columns"
        most = bytes_text(max(used[rank] for rank in ranks))
        lines += [f"{ranks_text(numbers_text(ranks))}: {size}, {most}, {text}", f"    {shards}"]
    rest = [rank for key, ranks in groups.items() if key not in shown for rank in ranks]
    return [*lines, *([f"{len(rest)} other ranks: {_range_text(plan, rest)}"] if rest else [])]


def _range_text(plan: PlanData, ranks: Sequence[int]) -> str:
    """The fewest and the most shards, bytes and ms of some ranks."""
    shards, used = [len(_own_shards(plan, rank)) for rank in ranks], [plan.memory_bytes[rank] for rank in ranks]
    text = f"{min(shards)} to {max(shards)} shards, {bytes_text(min(used))} to {bytes_text(max(used))}"
    costs = [] if plan.predicted is None else [plan.predicted.rank_ms[rank] for rank in ranks]
    return f"{text}; {min(costs):.3f} to {max(costs):.3f} ms" if costs else text


def _own_shards(plan: PlanData, rank: int) -> list[Shard]:
    """The shards of a rank without replicas."""
    return [shard for shard in plan.shards_by_rank[rank] if shard.sharding_type != "data_parallel"]


def _headline(plan: PlanData) -> str:
    task = plan.task
    cost = "no predicted cost" if plan.predicted is None else f"predicted {plan.predicted_cost_ms:.3f} ms per iteration"
    tables = {table.name if table.tier is None else table.tier.parent for table in task.tables}
    hosts = f" of {task.num_hosts} hosts" if task.num_hosts > 1 else ""
    return (
        f"{task.task_id}: {len(tables)} tables in {len(plan.shards)} shards on {task.world_size} ranks{hosts} by "
        f"{plan.sharder}, batch size {task.batch_size}: {cost}"
    )


def _types_text(plan: PlanData) -> str:
    """Number of tables of every sharding type, and of those that are cut by columns."""
    kinds = Counter({shard.table.name: shard.sharding_type for shard in plan.shards}.values())
    columns = Counter(shard.table.name for shard in plan.shards if shard.sharding_type == "column_wise")
    cut = [count for count in columns.values() if count > 1]
    splits = f" ({len(cut)} of them cut into {sum(cut)} shards)" if cut else ""
    known = [kind for kind in SHARDING_TYPES if kinds[kind]]
    return ", ".join(f"{kinds[kind]} {kind}{splits if kind == 'column_wise' else ''}" for kind in known)


def _rank_text(plan: PlanData, rank: int) -> str:
    """The parts of a rank's cost, and its interval."""
    if plan.predicted is None:
        return ""
    cost = plan.predicted
    text = f"; {sum_text(cost, rank)}"
    if not plan.interval_ms:
        return text
    low, high = plan.interval_ms[rank]
    if high > _WIDEST_INTERVAL * cost.rank_ms[rank]:
        return f"{text} (90 % prediction interval: too wide, it ends above {_WIDEST_INTERVAL:g} times the cost)"
    return f"{text} (90 % prediction interval: {low:.3f} to {high:.3f})"


def part_costs(cost: PlanCost) -> dict[str, tuple[float, ...]]:
    """Cost of every rank by the name of the part, without parts that have no price or that the plan does not have."""
    return {name: ms for part, name in PART_NAMES.items() if (ms := getattr(cost, f"{part}_ms"))}


def _shards_text(plan: PlanData, shards: Sequence[Shard]) -> str:
    ordered = sorted(shards, key=lambda shard: -plan.memory.shard_bytes(shard, plan.task))
    more = f", and {len(ordered) - _SHARDS_SHOWN} more" if len(ordered) > _SHARDS_SHOWN else ""
    return ", ".join(map(_shard_text, ordered[:_SHARDS_SHOWN])) + more if ordered else "(empty)"


def _shard_text(shard: Shard) -> str:
    """Name of the table; in brackets, the shard's columns unless it has all, and its type if this cuts rows.

    Columns alone are written as in Python: `clicks[0:16]`.
    """
    end = shard.column_offset + shard.embedding_dim
    columns = f"{shard.column_offset}:{end}" if shard.embedding_dim < shard.table.embedding_dim else ""
    if shard.sharding_type in ("column_wise", "data_parallel"):
        return f"{shard.table.name}[{columns}]" if columns else shard.table.name
    return f"{shard.table.name}[{', '.join([*([f'columns {columns}'] if columns else []), shard.sharding_type])}]"


def _cost_lines(plan: PlanData, cost: PlanCost) -> list[str]:
    """The slowest rank with its parts, what limits it, and the uncertainty about which rank it is."""
    ranks = range(plan.task.world_size)
    slowest = max(ranks, key=lambda rank: cost.rank_ms[rank])
    parts = {name: ms[slowest] for name, ms in part_costs(cost).items()}
    largest = max(parts, key=lambda part: parts[part])
    lines = [
        f"slowest rank: rank {slowest} with {sum_text(cost, slowest)}",
        f"limited by: {largest} of rank {slowest} ({parts[largest] / max(cost.rank_ms[slowest], 1e-12):.0%} of its "
        f"step){_dearest_text(plan, slowest) if largest == 'compute' else ''}",
    ]
    if plan.interval_ms and len(ranks) > 1:
        others = sum(plan.interval_ms[rank][1] >= cost.rank_ms[slowest] for rank in ranks if rank != slowest)
        who = {0: "no other rank has", 1: "one other rank has"}.get(others, f"{others} other ranks have")
        reach = f"a 90 % prediction interval that reaches the predicted cost of rank {slowest}"
        lines.append(f"uncertainty: {who} {reach}")
    return lines


def sum_text(cost: PlanCost, rank: int) -> str:
    """The parts of a rank's cost and their sum."""
    terms = " + ".join(f"{name} {ms[rank]:.3f}" for name, ms in part_costs(cost).items())
    return f"{terms} = {cost.rank_ms[rank]:.3f} ms"


def _dearest_text(plan: PlanData, rank: int) -> str:
    """The shard of a rank with the largest share of its lookups."""
    own = [at for at, of in enumerate(plan.ranks) if of == rank] if plan.lookup_ms else []
    if not own:
        return ""
    dearest = max(own, key=lambda at: plan.lookup_ms[at])
    share = plan.lookup_ms[dearest] / max(sum(plan.lookup_ms[at] for at in own), 1e-12)
    return f"; of its {len(own)} lookups, {_shard_text(plan.shards[dearest])} is the dearest ({share:.0%})"


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


def _balance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean if mean > 0 else 1.0
