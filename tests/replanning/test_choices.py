"""Choices of a change of plan: never dearer than a plan from nothing, within their limits, and near to the present."""

from dataclasses import replace

import numpy as np
import pytest
from search.settings import QUICK

import neuroshard_pipeline as ns
from neuroshard_pipeline.replanning.present import Present, judge
from neuroshard_pipeline.report.replan_tables import VerdictParams, verdict
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.profile import with_profile

WORLD, BATCH = 4, 8192


def drawn_table(number, rng, rows=None):
    rows = int(10 ** rng.uniform(3, 6.5)) if rows is None else rows
    table = ns.Table(f"t{number}", rows, int(rng.choice([16, 32, 64])), float(rng.choice([1, 2, 20])))
    return with_profile(table, BATCH)


@pytest.fixture(scope="module")
def models():
    return ns.load_cost_models("h100")


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    tables = [drawn_table(number, rng) for number in range(5)]
    return ns.ShardingTask(tables, WORLD, BATCH, 2**30, "rowwise_adagrad", local_world_size=2)


@pytest.fixture(scope="module")
def plan(task, models):
    return ns.shard(task, models, params=QUICK)


@pytest.fixture(scope="module")
def from_random(task, models):
    return ns.replan(ns.shard(task, models, "random"), task, models, settings=QUICK)


def changed(task, what):
    rng = np.random.default_rng(1)
    if what == "table added, others grown":
        tables = [
            with_profile(replace(t, num_embeddings=8 * t.num_embeddings, unique_rows=None, reuse=None), BATCH)
            if t.name in ("t1", "t4")
            else t
            for t in task.tables
        ]
        return replace(task, tables=[*tables, drawn_table("new", rng, 2_000_000)])
    if what == "more ranks":
        return replace(task, world_size=2 * WORLD)
    return replace(task, world_size=WORLD // 2, local_world_size=None)


@pytest.mark.parametrize("what", ["table added, others grown", "more ranks", "fewer ranks"])
def test_free_is_never_dearer_and_limits_hold(what, task, plan, models):
    now = changed(task, what)
    found = ns.replan(plan, now, models, (0.02, 0.05), QUICK)
    fresh = ns.shard(now, models, params=QUICK)
    assert found.free.plan.predicted_cost_ms <= fresh.predicted_cost_ms * (1 + 1e-9)
    costs = [choice.plan.predicted_cost_ms for choice in found.choices]
    assert costs == sorted(costs, reverse=True)
    for choice in found.choices:
        assert choice.plan.task.world_size == now.world_size
        assert priced(choice.plan, models).predicted_cost_ms == pytest.approx(choice.plan.predicted_cost_ms)
        if choice.name.startswith("at most"):
            assert choice.move.rank_bytes <= (0.02 if "0.02" in choice.name else 0.05) * 2**30


def test_the_same_task_gives_the_same_plan(task, plan, models):
    found = ns.replan(plan, task, models, settings=QUICK)
    assert found.judgement.problems == ()
    assert found.judgement.fits
    assert found.judgement.predicted.embedding_cost_ms == pytest.approx(plan.predicted_cost_ms)
    if found.free.plan.predicted_cost_ms == pytest.approx(plan.predicted_cost_ms, rel=1e-12):
        assert found.free.move.total_bytes == 0
    assert found.choices[0].move.total_bytes == 0


def test_a_plan_of_another_sharder_is_improved_and_the_move_pays(from_random):
    keep, limited, free = from_random.choices
    assert keep.name == "keep"
    assert free is from_random.free
    assert 0 < limited.move.rank_bytes <= free.move.rank_bytes / 4
    assert (keep.saved_ms, keep.pays_after) == (0.0, None)
    assert free.saved_ms == pytest.approx(keep.plan.predicted_cost_ms - free.plan.predicted_cost_ms)
    assert free.pays_after == pytest.approx(free.move.move_ms / free.saved_ms)


def with_errors(found, share):
    """The same choices as cost models with this relative error give them."""
    wrong = [{part: (ms, share) for part, (ms, _) in each.parts_ms.items()} for each in found.choices]
    return replace(found, choices=[replace(c, parts_ms=parts) for c, parts in zip(found.choices, wrong, strict=True)])


def test_a_gain_within_the_errors_of_the_cost_models_is_no_reason_to_move(from_random):
    found = from_random
    sure, unsure = with_errors(found, 0.001), with_errors(found, 3.0)
    low, high = sure.free.gain_over(sure.choices[0])
    assert 0 < low < found.free.saved_ms < high
    assert unsure.free.gain_over(unsure.choices[0])[0] < 0
    best = sure.best()
    assert best.name != "keep"
    assert sure.best(steps=1).name == sure.best(least_saving=0.99).name == unsure.best().name == "keep"
    assert sure.best(gib_per_rank=best.move.rank_bytes / 2**31).move.rank_bytes < best.move.rank_bytes
    params = VerdictParams(steps=100_000, least_saving=0.0)
    assert verdict(sure, params).startswith(f"Take {best.name!r}: its move takes")
    told = verdict(unsure, params)
    assert told.startswith("Take 'keep': no other choice is sure to save enough time in 100,000 steps.")
    assert f"not accurate enough to tell its step apart from those of {found.choices[1].name!r} (" in told


def test_what_is_wrong_with_the_present_plan_is_said(task, plan, models):
    tables = [
        replace(task.tables[0], num_embeddings=task.tables[0].num_embeddings + 5),
        replace(task.tables[1], embedding_dim=128),
        *task.tables[3:],
        ns.Table("new", 100, 16, 1.0),
    ]
    now = replace(task, tables=[with_profile(table, BATCH) for table in tables], memory_bytes=2**20)
    found = judge(Present.of(plan), Problem(now, models, default_memory()))
    text = "\n".join(found.problems)
    assert "it has no shards of the table 'new'" in text
    assert "it has the table 't2', which the task does not have" in text
    assert "table 't0' has grown from" in text
    assert "columns and has 128 now" in text
    assert "bytes too many" in text
    assert not found.fits
    other = judge(Present.of(plan), Problem(replace(task, world_size=16), models, default_memory()))
    assert other.predicted is None
    assert "a plan for 4 ranks, but the task has 16" in other.problems[0]


def test_cut_sequence_tables_keep_their_shards_and_one_width(models):
    """Blocks whose rank is gone go to other ranks; blocks on other ranks stay."""
    large = ns.Table("large", 4 * 10**7, 128, 5.0, pooling="none")
    tables = [large, *(ns.Table(f"t{at}", 10_000, 128, 20.0, pooling="none") for at in range(12))]
    only_columns = ns.Constraints(sharding_types=("column_wise",))
    limit = large.weight_bytes * 45 // 100
    before = ns.ShardingTask(tables, 5, 5 * 2**14, limit, constraints=only_columns)
    plan = ns.shard(before, models, params=QUICK)
    found = ns.replan(plan, replace(before, world_size=4, batch_size=4 * 2**14), models, (), QUICK)
    keep = found.choices[0]
    of_large = [[s.embedding_dim for s in each.shards if s.table is large] for each in (plan, keep.plan)]
    assert keep.name == "keep"
    assert of_large[0] == of_large[1] == [of_large[0][0]] * len(of_large[0])
    lost = sum(shard.weight_bytes for shard in plan.shards_by_rank[4] if shard.table is large)
    assert 0 <= keep.move.between.sum() - lost < 0.01 * large.weight_bytes


def test_bad_input_is_refused(task, plan, models):
    with pytest.raises(ns.NeuroShardError, match="gib_per_rank -1 must be a number of GiB above 0"):
        ns.replan(plan, task, models, [-1])
    other = replace(task, tables=[ns.Table("other", 100, 16, 1.0)])
    with pytest.raises(ns.NeuroShardError, match="has none of the tables of task"):
        ns.replan(plan, other, models)
