"""The picture of tiers: popularity curves, their cuts into tiers, and bytes inside and between hosts."""

import dataclasses
import json

import pandas as pd
import pytest
from sequence_draws import sequence_tables

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.evaluation.totals import plan_costs_frame
from neuroshard_pipeline.report import figures, render_report
from neuroshard_pipeline.report.formats import percent
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.search.spread import spread_tables
from neuroshard_pipeline.search.volumes import plan_volumes
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

TABLES = sequence_tables("steep", [20, 30], [32, 32], [50_000, 60_000], 512)
ASKED = ShardingTask(TABLES, 4, 512, 2**40, task_id="tiered", local_world_size=2, tiers=True)


def tiered_plan(asked: ShardingTask = ASKED) -> Plan:
    cuts = {TABLES[0].name: Cuts(100, 200), TABLES[1].name: Cuts(hot_rows=500)}
    task = tiered_task(asked, cuts if asked.num_hosts > 1 else {TABLES[1].name: Cuts(hot_rows=500)})
    types = {"hot": "data_parallel", "host": "host_row_wise", "cold": "row_wise"}
    names = {table.name: types[table.tier.kind] if table.tier else "row_wise" for table in task.tables}
    spread = spread_tables(names, task, default_memory())
    cost = PlanCost(*[(1.0,) * 4] * 4, (), (0.5,) * 4, ())
    return Plan(task, spread.shards, spread.ranks, "neuroshard_plus", cost, default_memory())


def bytes_of(figure, what: str) -> float:
    """Sum of all bars labelled `what`, in bytes: `tiers` is the plan, and in `no tiers` all tables are row_wise."""
    bars = [trace for trace in figure.data if trace.type == "bar"]
    return 1e6 * sum(x for bar in bars for x, label in zip(bar.x, bar.y[1], strict=True) if label == what)


def test_bars_hold_all_bytes_of_the_plan():
    plan = tiered_plan()
    volumes = plan_volumes(plan.task, plan.shards, plan.ranks)
    figure = figures.tiers_picture(plan)
    sent = sum(sum(of.values()).sum() for of in (volumes.inside, volumes.across))
    assert bytes_of(figure, "tiers") == pytest.approx(sent, rel=1e-3)
    assert bytes_of(figure, "no tiers") > bytes_of(figure, "tiers")


def test_curves_are_cut_where_the_tiers_end():
    figure = figures.tiers_picture(tiered_plan())
    curves = [trace for trace in figure.data if trace.type == "scatter"]
    # The table with the most traffic comes first.
    assert [curve.legendgroup for curve in curves] == ["hot", "cold", "hot", "host", "cold"]
    hot, host, cold = curves[2:]
    assert (hot.x[0], hot.x[-1], host.x[-1], cold.x[-1]) == (1, 100, 300, 50_000)
    assert hot.y[-1] == pytest.approx(host.y[0], rel=1e-3)
    assert cold.y[-1] == pytest.approx(100)
    text = json.dumps(figure.to_plotly_json()["layout"]["annotations"], default=str)
    assert "host 200 rows" in text


def test_a_picture_says_where_each_curve_comes_from_and_draws_it():
    counted = dataclasses.replace(TABLES[1], popularity=((500.0, 0.9), (60_000.0, 1.0)))
    figure = figures.tiers_picture(tiered_plan(dataclasses.replace(ASKED, tables=[TABLES[0], counted])))
    titles = [annotation.text for annotation in figure.layout.annotations]
    assert f"<b>{counted.name}</b>; its curve comes from counted ids, or the table file" in titles[0]
    assert "comes from the reuse profile of one batch" in titles[2]
    hot = next(trace for trace in figure.data if trace.type == "scatter")
    assert (hot.x[-1], hot.y[-1]) == (500, pytest.approx(90))


def test_titles_state_how_many_bytes_the_tiers_save():
    plan = tiered_plan(dataclasses.replace(ASKED, tables=TABLES, local_world_size=None))
    (row,) = figures.tiers_picture(plan).layout.annotations[1:2]
    figure = figures.tiers_picture(plan)
    saved = 1 - bytes_of(figure, "tiers") / bytes_of(figure, "no tiers")
    assert row.text == f"between ranks: {percent(saved)} fewer bytes"


def test_ranks_of_one_host_have_one_kind_of_wire():
    figure = figures.tiers_picture(tiered_plan(dataclasses.replace(ASKED, local_world_size=None)))
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert {wire for bar in bars for wire in bar.y[0]} == {"between ranks"}


def test_a_plan_without_tiers_has_no_picture(inputs):
    plan = tiered_plan()
    with pytest.raises(PlanError, match="no tiers"):
        figures.tiers_picture(Plan(ASKED, *_row_wise(), "x", memory=plan.memory))
    assert "No plan" in figures.tiers_of_run(inputs.plans, inputs.plan_costs, inputs.sharding_tasks).to_json()


def test_the_picture_shows_the_plan_whose_whole_step_is_cheapest():
    """The parts that can be measured are cheaper for `milp`, but its input dist is not."""
    slow_ids = PlanCost(*[(0.5,) * 4] * 4, (9.0,) * 4, (0.5,) * 4, ())
    plans = [tiered_plan(), dataclasses.replace(tiered_plan(), sharder="milp", predicted=slow_ids)]
    frame = pd.concat([plan.to_frame() for plan in plans], ignore_index=True)
    figure = figures.tiers_of_run(frame, plan_costs_frame(plans), tasks_to_frame([ASKED]))
    assert "by neuroshard_plus" in figure.layout.title.text


def _row_wise():
    spread = spread_tables({table.name: "row_wise" for table in TABLES}, ASKED, default_memory())
    return spread.shards, spread.ranks


def test_the_page_shows_tiers_if_a_plan_has_them(inputs):
    plan = tiered_plan()
    with_tiers = dataclasses.replace(
        inputs,
        plans=pd.concat([inputs.plans, plan.to_frame()], ignore_index=True),
        plan_costs=pd.concat([inputs.plan_costs, plan_costs_frame([plan])], ignore_index=True),
        sharding_tasks=pd.concat([inputs.sharding_tasks, tasks_to_frame([ASKED])], ignore_index=True),
    )
    page = render_report(with_tiers)["report"]
    assert 'id="tiers"' in page
    assert "tiers of 2 sequence tables" in page
