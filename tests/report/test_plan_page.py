"""Pages of plans: what they say about the plan, its rivals, and what a change of plan moves."""

import re
from dataclasses import replace

import pytest

import neuroshard_pipeline as ns
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.plan_page import moved_rows, part_rows, render_plan, render_replan
from neuroshard_pipeline.report.replan_tables import VerdictParams
from neuroshard_pipeline.tables.profile import with_profile

BATCH = 4096
PARAMS = VerdictParams(steps=1000, least_saving=0.0)


@pytest.fixture(scope="module")
def found():
    """From everything on one of two hosts to what is best."""
    tables = [with_profile(ns.Table(f"t{n}", 10_000 * (n + 1), 32, 5.0), BATCH) for n in range(6)]
    task = ns.ShardingTask(tables[:5], 4, BATCH, 2**30, "rowwise_adagrad", local_world_size=2)
    models = ns.load_cost_models("h100")
    present = ns.shard(task, models, "size_greedy")
    ranks = tuple(rank % 2 for rank in present.ranks)
    return ns.replan(Present(present.shards, ranks, 4), replace(task, tables=tables), models)


def text_of(page):
    return re.sub(r"<script.*?</script>|<[^>]*>", " ", page, flags=re.DOTALL)


def test_the_page_of_a_plan_says_what_explain_says_first(found):
    plan = found.free.plan
    rival = replace(plan, sharder="rival")
    page = render_plan(plan, [rival])
    shown = text_of(page)
    for line in plan.explain([rival]).split("\n\n")[0].splitlines():
        assert line.partition(": ")[2].replace("'", "&#39;") in shown
    assert all(f" {table.name} " in shown for table in plan.task.tables)
    assert "http" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)  # it loads nothing


def test_the_page_of_a_change_says_what_moves_and_which_part_shrinks(found):
    shown = text_of(render_replan(found, PARAMS))
    assert all(choice.name in shown for choice in found.choices)
    assert "it has no shards of the table" in shown
    rows = moved_rows(found, found.free.plan)[1:]
    assert [was == "new" for name, was, *_ in rows if name == "t5"] == [True]
    sizes = [float(size.replace(",", "")) for *_, size in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == pytest.approx(found.free.move.total_bytes / 2**20, abs=0.05 * len(rows))


def test_parts_add_up_to_the_step(found):
    plans = {choice.name: choice.plan for choice in (found.choices[0], found.free)}
    _, *parts, step = part_rows(plans)
    for column in (1, 2):
        assert sum(float(row[column]) for row in parts if row[column] != "-") == pytest.approx(
            float(step[column]), abs=4e-3
        )


def test_pictures_of_plans_show_every_column_and_all_bytes_between_hosts(found):
    plan = found.free.plan
    picture = figures.pictures({"one": plan, "other": plan}, "title")
    bars = [trace for trace in picture.data if trace.text is not None and "columns" in trace.text[0]]
    assert [sum(bar.y) for bar in bars] == [sum(shard.embedding_dim for shard in plan.shards)] * 2
    sent = figures.sent_bytes({"one": plan})
    assert all(len(trace.y) == plan.task.num_hosts for trace in sent.data)
