"""Plans as self-contained HTML pages: one plan, or the plan that runs and the one that comes next, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.replanning import Present, Replan
from neuroshard_pipeline.replanning.moved import moved_bytes
from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.formats import MISSING
from neuroshard_pipeline.report.page import render_page
from neuroshard_pipeline.report.replan_tables import VerdictParams, choice_rows, judgement_text, verdict
from neuroshard_pipeline.search.explain import numbers_text, part_costs, ranks_text, summary_lines, table_rows
from neuroshard_pipeline.search.plan import Plan

_TABLE_COLUMNS = ("table", "rows x columns", "memory", "lookups, ms", "share", "sharding type", "ranks")
#: Most tables that the page lists, the dearest ones; `plan.plan` has all.
_TABLES_SHOWN = 60
_MIB = 2**20


def render_plan(plan: Plan, rivals: Sequence[Plan] = ()) -> str:
    """The page of a priced plan, beside `rivals`, plans of other sharders for the same task."""
    title = f"{plan.task.task_id} on {plan.task.world_size} ranks"
    lines = [(0, key, text) for key, _, text in (line.partition(": ") for line in summary_lines(plan, rivals))]
    return render_plans(title, {"": {plan.sharder: plan}}, [{"lines": lines}, *_tables_and_text({"the plan": plan})])


def render_replan(found: Replan, params: VerdictParams) -> str:
    """The page of a change of plan: the choices, and `keep` beside the best other one, what moves and what shrinks."""
    best, first = found.best(params.steps, params.least_saving), found.choices[0]
    other = best if best is not first else found.choices[-1]
    plans = {choice.name: choice.plan for choice in (first, other)}
    problems = judgement_text(found.judgement).splitlines()
    sections: list[dict[str, Any]] = [
        {"notes": [*problems, verdict(found, params)], "grid": choice_rows(found)},
        {"title": "Which part of the slowest rank's step changes?", "grid": part_rows(plans)},
        {"title": f"What does {other.name!r} move?", "grid": moved_rows(found, other.plan), "kind": "words"},
        *_tables_and_text(plans),
    ]
    title = f"{other.plan.task.task_id}: from the plan that runs"
    return render_plans(title, {"": plans}, sections)


def render_plans(title: str, pictured: Mapping[str, Mapping[str, Plan]], sections: Sequence[Mapping[str, Any]]) -> str:
    """A page with sections, after the first of which pictures of plans follow: those of a heading side by side.

    A section may have `notes`, `title`, `lines` (depth, key and text), `grid` with its `kind`, and `folded`, pairs of a
    summary and a text.
    """
    drawn = {}
    for number, (heading, plans) in enumerate(pictured.items()):
        drawn[f"plan_{number}"] = figures.pictures(plans, f"{heading} Shards, cost and memory of every rank".strip())
        drawn[f"sent_{number}"] = figures.sent_bytes(plans)
    return render_page("plans.html", drawn, title=title, sections=sections)


def part_rows(plans: Mapping[str, Plan]) -> list[list[str]]:
    """Header, and per part of a step its predicted ms on the slowest rank of each plan; the last row is the step."""
    costs = {name: plan.predicted for name, plan in plans.items() if plan.predicted is not None}
    slowest = {name: max(range(len(of.rank_ms)), key=of.rank_ms.__getitem__) for name, of in costs.items()}
    parts = {name: part_costs(of) for name, of in costs.items()}
    rows = [["part", *(f"{name}, ms (rank {slowest[name]})" for name in costs)]]
    for part in dict.fromkeys(part for of in parts.values() for part in of):
        shown = (f"{of[part][slowest[name]]:.3f}" if part in of else MISSING for name, of in parts.items())
        rows += [[part, *shown]]
    return [*rows, ["step", *(f"{of.embedding_cost_ms:.3f}" for of in costs.values())]]


def moved_rows(found: Replan, plan: Plan) -> list[list[str]]:
    """Header, and per table with other shards or ranks where it is now, where it will be, and the bytes that move."""
    now = {
        name: (shards[0][0].sharding_type, sorted({r for _, r in shards}))
        for name, shards in found.present.placed.items()
    }
    rows, placed = list[tuple[int, list[str]]](), Present.of(plan).placed
    for name, *_, kind, ranks in table_rows(plan):
        shards, of = (tuple(each) for each in zip(*placed[name], strict=True))
        size = int(moved_bytes(found.present, shards, of, plan.task).sum())
        old = now.get(name)
        if old is None or size:
            was = "new" if old is None else f"{old[0]}, {ranks_text(numbers_text(old[1]))}"
            rows.append((size, [name, was, f"{kind}, {ranks_text(ranks)}", f"{size / _MIB:,.1f}"]))
    moved = [row for _, row in sorted(rows, key=lambda row: -row[0])]
    return [["table", "now", "next", "MiB received"], *moved[:_TABLES_SHOWN]]


def _tables_and_text(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Sections with the tables by cost of the last plan, and all plans in words."""
    name, plan = list(plans.items())[-1]
    rows = table_rows(plan)
    some = f", the first {_TABLES_SHOWN} of {len(rows):,}" if len(rows) > _TABLES_SHOWN else ""
    tables = {"title": f"Tables of {name!r} by cost{some}", "grid": [_TABLE_COLUMNS, *rows[:_TABLES_SHOWN]]}
    return [tables, {"title": "In words", "folded": [(name, of.explain()) for name, of in plans.items()]}]
