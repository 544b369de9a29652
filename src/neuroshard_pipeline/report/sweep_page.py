"""The candidates of a sweep as text and as one HTML file."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.evaluation.sweep import Candidate
from neuroshard_pipeline.report.plan_page import render_plans
from neuroshard_pipeline.report.terminal import aligned_table

COLUMNS = (
    "GPU", "ranks", "step ms", "slowest part", "samples/s", "GiB left", "peak GiB", "reserved", "reservation",
    "sharding types",
)  # fmt: skip


def sweep_rows(candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """The cells of `COLUMNS` of every candidate."""
    return [_row(candidate) for candidate in candidates]


def sweep_text(candidates: Sequence[Candidate]) -> str:
    """A table, and a line for every candidate that has no plan."""
    problems = [f"{each.gpu}, {each.ranks} ranks: {each.problem}" for each in candidates if each.plan is None]
    return "\n".join([aligned_table([COLUMNS, *sweep_rows(candidates)]), *problems])


def sweep_html(candidates: Sequence[Candidate], title: str, notes: Sequence[str]) -> str:
    """A self-contained page with the table, the problems, and the plans as pictures and in words."""
    names = {f"{each.gpu}, {each.ranks} ranks": each for each in candidates}
    plans = {f"{name}.": {each.plan.sharder: each.plan} for name, each in names.items() if each.plan is not None}
    folded = [(name, each.problem or (each.plan and each.plan.explain())) for name, each in names.items()]
    first = {"notes": notes, "grid": [COLUMNS, *sweep_rows(candidates)], "kind": "words"}
    return render_plans(title, plans, [first, {"title": "In words", "folded": folded}])


def _row(candidate: Candidate) -> tuple[str, ...]:
    if candidate.plan is None or candidate.peak is None:
        return (candidate.gpu, str(candidate.ranks), "does not fit", *[""] * (len(COLUMNS) - 3))
    kinds = Counter({shard.table.name: shard.sharding_type for shard in candidate.plan.shards}.values())
    return (
        candidate.gpu,
        str(candidate.ranks),
        f"{candidate.step_ms:.2f}",
        candidate.slowest_part,
        f"{candidate.samples_per_second:,.0f}",
        f"{candidate.memory_left_gib:.1f}",
        *(f"{np.max(size) / 2**30:.1f}" for size in (candidate.peak.allocated, candidate.peak.reserved)),
        f"{candidate.storage_reservation:.0%}",
        ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
    )
