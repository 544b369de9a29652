"""A plan with tiers (blocks of rows by popularity) on another day's ids: shares, costs, and when new tiers pay off."""

from dataclasses import replace

import numpy as np
import pytest
from row_popularity import row_popularity
from search.settings import QUICK
from sequence_draws import SequenceIds, sequence_tables

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.replanning.days import plan_day, replan_day, rows_moved
from neuroshard_pipeline.replanning.moved import moved_bytes
from neuroshard_pipeline.replanning.other_day import day_task, most_popular, on_ids, planned_shares, shares_of
from neuroshard_pipeline.report.replan_tables import VerdictParams, replan_text
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.id_batches import counted
from neuroshard_pipeline.tables.popularity import id_counts
from neuroshard_pipeline.tables.profile import reuse_histogram
from neuroshard_pipeline.tables.row_blocks import row_blocks
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, cuts_of, tiered_task, tiers_of

WORLD, LOCAL, BATCH, ROWS = 4, 2, 512, 20_000
CUTS = Cuts(hot_rows=200, host_rows=1_800)
PARAMS = VerdictParams(steps=100_000, least_saving=0.02)


@pytest.fixture(scope="module")
def models():
    return load_cost_models("h100")


@pytest.fixture(scope="module")
def source():
    (table,) = sequence_tables("published", [50], [64], [ROWS], BATCH)
    return SequenceIds(table, row_popularity("published", ROWS))


@pytest.fixture(scope="module")
def plan(source, models):
    task = ShardingTask([source.table], WORLD, BATCH, 2**30, local_world_size=LOCAL, tiers=True)
    tiered = tiered_task(task, {source.table.name: CUTS})
    hot, host, cold = tiered.tables
    blocks = [(rank, *row_blocks(host.num_embeddings, LOCAL)[rank % LOCAL]) for rank in range(WORLD)]
    placed = [(Shard(hot, 0, 64, sharding_type="data_parallel"), rank) for rank in range(WORLD)]
    placed += [(Shard(host, 0, 64, first, rows, "host_row_wise"), rank) for rank, first, rows in blocks]
    cold_blocks = enumerate(row_blocks(cold.num_embeddings, WORLD))
    placed += [(Shard(cold, 0, 64, first, rows, "row_wise"), rank) for rank, (first, rows) in cold_blocks]
    placement = Placement(tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed))
    return price_plan(Problem(tiered, models, default_memory()), placement, "neuroshard_plus")


def a_day(source, swapped_share=0.0, batches=4, seed=0):
    of_day = replace(source, swapped_share=swapped_share)
    return {source.table.name: [of_day.draw(BATCH, seed + number).indices for number in range(batches)]}


def planned_rows(source):
    return {source.table.name: source.popular_rows(CUTS.hot_rows + CUTS.host_rows)}


@pytest.fixture(scope="module")
def after_heavy_drift(plan, source, models):
    return replan_day(plan, planned_rows(source), a_day(source, 0.8), models, QUICK)


def test_shares_per_tier_are_those_of_the_curve_on_the_same_day(plan, source):
    shares = shares_of(plan.task, planned_rows(source), a_day(source))[source.table.name]
    hot, popular = (source.popularity.share_of(rows) for rows in (200, 2_000))
    assert shares == pytest.approx({"hot": hot, "host": popular - hot, "cold": 1 - popular}, abs=0.01)


def test_ids_of_all_tiers_add_up_and_keep_their_profiles(plan, source, models):
    day = a_day(source, batches=1)
    seen = on_ids(plan, planned_rows(source), day, models)
    (ids,) = day[source.table.name]
    tables = {table.tier.kind: table for table in seen.task.tables}
    assert sum(table.pooling_factor for table in tables.values()) * BATCH == pytest.approx(len(ids))
    popular = source.popular_rows(2_000)
    hot, host = np.isin(ids, popular[:200]), np.isin(ids, popular[200:])
    for kind, own in {"hot": ids[hot], "host": ids[host], "cold": ids[~hot & ~host]}.items():
        unique, reuse, _ = reuse_histogram(own)
        assert tables[kind].pooling_factor * BATCH == pytest.approx(len(own)), kind
        assert tables[kind].unique_rows == unique, kind
        assert tables[kind].reuse == pytest.approx(reuse), kind


def test_a_tier_without_ids_counts_as_half_an_id(plan, source, models):
    nowhere = {source.table.name: np.setdiff1d(np.arange(ROWS), a_day(source, batches=1)[source.table.name][0])[:2_000]}
    seen = on_ids(plan, nowhere, a_day(source, batches=1), models)
    assert [table.pooling_factor * BATCH for table in seen.task.tables] == pytest.approx([0.5, 0.5, BATCH * 50])


def test_without_drift_nothing_is_worth_it(models):
    """Here the search chooses the cuts. With those of the fixture `plan`, a new plan is worth it on the same day."""
    batch_size = 2048
    (table,) = sequence_tables("published", [100], [512], [50_000], batch_size)
    source = SequenceIds(table, row_popularity("published", 50_000))
    planned, other = ({table.name: [source.draw(batch_size, s).indices for s in seeds]} for seeds in ((0, 1), (2, 3)))
    task = ShardingTask([table], 16, batch_size, 2**32, local_world_size=8, tiers=True)
    plan, rows = plan_day(task, planned, models, QUICK)
    assert 0 < cuts_of(plan.task)[table.name].hot_rows < 50_000
    found = replan_day(plan, rows, other, models, QUICK)
    assert found.best(100_000, 0.02) is found.choices[0]
    assert "Take 'keep': no other choice is sure to save enough time in 100,000 steps." in replan_text(found, PARAMS)


def test_costs_and_moved_bytes_grow_with_the_drift(plan, source, models, after_heavy_drift):
    days = [a_day(source, share) for share in (0.0, 0.3)]
    found = [*(replan_day(plan, planned_rows(source), day, models, QUICK) for day in days), after_heavy_drift]
    costs = [each.choices[0].plan.predicted_cost_ms for each in found]
    assert [each.choices[0].name for each in found] == ["keep"] * 3
    assert costs == sorted(costs)
    cut_again = [next(of for of in each.choices if of.name == "same cuts") for each in found[1:]]
    assert 0 < cut_again[0].move.total_bytes < cut_again[1].move.total_bytes
    assert found[2].choices[0].move.total_bytes == 0
    assert "the ids of table 'sequence_0' look up" in found[2].judgement.problems[0]


def test_heavy_drift_is_worth_a_move_unless_few_steps_follow(after_heavy_drift):
    found = after_heavy_drift
    best = found.best(100_000, 0.02)
    assert best is not found.choices[0]
    assert best.saved_ms > 0
    assert best.pays_after == pytest.approx(best.move.move_ms / best.saved_ms)
    assert f"Take {best.name!r}: its move takes" in replan_text(found, PARAMS)
    assert found.best(100_000, 0.99) is found.choices[0]


def test_without_tiers_the_choices_are_those_of_replan(source, models):
    day = {source.table.name: [ids[:BATCH] for ids in a_day(source)[source.table.name]]}
    task = ShardingTask([source.table], WORLD, BATCH, 2**30, local_world_size=LOCAL)
    plan, rows = plan_day(task, day, models, QUICK)
    assert not cuts_of(plan.task)
    found = replan_day(plan, rows, day, models, QUICK)
    assert found.choices[0].plan.predicted_cost_ms == pytest.approx(plan.predicted_cost_ms, rel=0.01)


def test_the_day_task_joins_tiers_again(plan, source):
    day = a_day(source)
    task = day_task(plan.task, day)
    (table,) = task.tables
    assert (table.name, table.num_embeddings, table.tier) == (source.table.name, ROWS, None)
    assert table == counted(source.table, day[table.name], BATCH)
    assert task.tiers


def test_planned_shares_add_up(plan, source):
    shares = planned_shares(tiers_of(plan.task)[source.table.name])
    assert sum(shares.values()) == pytest.approx(1.0)


def test_the_rows_with_the_most_counted_ids_are_popular_in_the_source(source):
    counts = {source.table.name: id_counts(a_day(source)[source.table.name], ROWS)}
    found = most_popular({source.table.name: Cuts(50, 50)}, counts)[source.table.name]
    assert np.isin(found, source.popular_rows(200)).mean() > 0.9


def test_bad_input_is_named(plan, source, models):
    rows, day, name = planned_rows(source), a_day(source), source.table.name
    with pytest.raises(TaskError, match="at least two batches of ids of table 'sequence_0'"):
        replan_day(plan, rows, {name: day[name][:1]}, models, QUICK)
    with pytest.raises(TaskError, match="but 5 popular rows are given"):
        replan_day(plan, {name: rows[name][:5]}, day, models, QUICK)


@pytest.mark.parametrize(
    ("gone", "come", "rows_received"),
    [
        (slice(0, 0), slice(0, 0), 0),
        (slice(0, 200), slice(2_000, 2_200), 200 * (WORLD - 1)),  # cold rows become hot
        (slice(0, 200), slice(200, 400), 200 * (WORLD - 2)),  # host rows become hot; every host has them
        (slice(200, 600), slice(2_000, 2_400), 600 + 200),  # by hand: a rank has a quarter of cold, half of host rows
    ],
)
def test_ranks_receive_the_rows_that_they_lack_in_their_new_tiers(plan, source, gone, come, rows_received):
    order = source.popular_rows(ROWS)
    changed = order.copy()
    changed[gone], changed[come] = order[come], order[gone]
    old, new = ((plan, {source.table.name: rows[:2_000]}) for rows in (order, changed))
    present, placement = rows_moved(old, new)
    between = moved_bytes(present, placement.shards, placement.ranks, plan.task)
    assert between.sum() == rows_received * 64 * 4
