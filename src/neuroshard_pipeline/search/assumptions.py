"""What the predicted cost of a plan assumes or leaves out, in words."""

from collections.abc import Sequence

from neuroshard_pipeline.search.plan_data import PlanData
from neuroshard_pipeline.tables.popularity import curve_source
from neuroshard_pipeline.tables.profile import contradiction, is_assumed
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.tiers import parent_tables

#: Number of tables that a line names.
_TABLES_SHOWN = 12


def assumption_lines(plan: PlanData) -> list[str]:
    """Where reuse profiles and popularity curves come from, what has no price, and other caveats about the costs."""
    tables = parent_tables(plan.task)
    notes = [*_pricing_notes(plan), *_host_tier_notes(plan), *plan.caveats]
    return [*_profile_notes(tables, plan.task.batch_size), *_curve_notes(tables if plan.task.tiers else ()), *notes]


def _profile_notes(tables: Sequence[Table], batch_size: int) -> list[str]:
    """How many tables have assumed reuse profiles, and which given ones contradict the pooling factor."""
    assumed = [table.name for table in tables if is_assumed(table)]
    of_all = f"of {len(tables)} tables"
    lines = [f"assumed for {len(assumed)} {of_all}: {_some(assumed)}" if assumed else "given for every table"]
    given = {table.name: contradiction(table, batch_size) for table in tables if not is_assumed(table)}
    wrong = [f"{name} ({numbers})" for name, numbers in given.items() if numbers]
    if wrong:
        remedy = f"count profiles in batches of {batch_size:,} samples"
        lines.append(f"contradictory for {len(wrong)} {of_all}: {_some(wrong)}; {remedy}")
    return [f"reuse profiles: {line}" for line in lines]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_TABLES_SHOWN]) + (", ..." if len(names) > _TABLES_SHOWN else "")


def _curve_notes(tables: Sequence[Table]) -> list[str]:
    """Where the popularity curves of the sequence tables among `tables` come from."""
    names: dict[str, list[str]] = {}
    for table in tables:
        if table.pooling == "none":
            names.setdefault(curve_source(table), []).append(table.name)
    lines = []
    for source, of in names.items():
        whose = "curve of 1 sequence table comes" if len(of) == 1 else f"curves of {len(of)} sequence tables come"
        lines.append(f"popularity: the {whose} from {source}: {_some(of)}")
    return lines


def _pricing_notes(plan: PlanData) -> list[str]:
    """Parts of a step that the predicted cost leaves out."""
    if plan.predicted is None:
        return []
    if not plan.predicted.input_dist_ms:
        return ["not priced: input dist and TorchRec's own work, because the cost models have no step cost model"]
    if plan.task.pipelines_input_dist:
        return ["input dist: no cost, because the trainer sends the ids while it computes on the previous batch"]
    return []


def _host_tier_notes(plan: PlanData) -> list[str]:
    """Where the prices of host tiers come from."""
    if plan.predicted is None or all(cuts.host_rows == 0 for cuts in plan.tiers.values()):
        return []
    return [
        "host tiers: modelled, because no step with one was measured; they have the prices of all-to-alls among the "
        "ranks of one host and of all_reduce among one rank of every host"
    ]
