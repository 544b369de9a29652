"""Advice: every line is a plan of its changed task; gains and costs follow from it; an interrupted call keeps lines."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.settings import QUICK

import neuroshard_pipeline as ns
from neuroshard_pipeline.advice import lines as module
from neuroshard_pipeline.advice.doubts import _profile, doubts
from neuroshard_pipeline.advice.frontiers import dropped_shares
from neuroshard_pipeline.advice.what_ifs import with_batch, with_faster_links
from neuroshard_pipeline.report.advice_page import advice_html, advice_text
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.tables.id_batches import observed
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import whole

WORLD, BATCH = 2, 4096


@pytest.fixture(scope="module")
def models():
    return ns.load_cost_models("h100")


@pytest.fixture(scope="module")
def task():
    tables = [ns.Table("t", 80_000, 32, 10.0), ns.Table("words", 100_000, 64, 20.0, pooling="none")]
    known = [with_profile(table, BATCH) for table in tables]
    return ns.ShardingTask(
        [replace(t, has_assumed_profile=False) for t in known], WORLD, BATCH, 2**27, "rowwise_adagrad"
    )


@pytest.fixture(scope="module")
def advice(task, models):
    return ns.advise(task, models, QUICK, pairs=1)


def test_every_line_is_a_plan_of_its_changed_task(task, models, advice):
    assert advice.today.plan.task.tables == task.tables
    assert [line.step_ms for line in advice.lines] == sorted(line.step_ms for line in advice.lines)
    for line in advice.lines:
        changed = line.what_if.change(task)
        plan = priced(line.plan, line.what_if.models(models))
        samples, ranks = (number * changed.num_replica_groups for number in (changed.batch_size, changed.world_size))
        assert line.step_ms == pytest.approx(plan.predicted_cost_ms * BATCH / samples)
        assert line.gain_ms == pytest.approx(advice.today.step_ms - line.step_ms)
        assert line.low_gain_ms < line.gain_ms < line.high_gain_ms
        assert line.parts_ms["compute"][1] > 0
        assert line.rank_hours == pytest.approx(ranks * plan.predicted_cost_ms / 3.6e6 / samples * 1e6)
        assert plan.task.comm_precision == changed.comm_precision
        if not plan.task.tiers:
            assert {t.name: t.embedding_dim for t in plan.task.tables} == {
                t.name: t.embedding_dim for t in changed.tables
            }


def test_what_only_relaxes_the_task_never_makes_it_slower(advice):
    names = {line.what_if.name: line for line in advice.lines}
    for name in ("pipelined input dist", "half as much memory again", "tiers of popular rows"):
        assert names[name].gain_ms >= -1e-9
        assert not names[name].what_if.changes_model
    assert names["links of twice the bandwidth"].gain_ms >= -1e-9
    assert names["removal of repeated ids"].what_if.setting == "EmbeddingCollectionSharder(use_index_dedup=True)"


def test_the_pair_makes_both_changes(task, advice):
    (pair,) = [line for line in advice.lines if "+" in line.what_if.topic]
    changed = pair.what_if.change(task)
    names = pair.what_if.name.split(" + ")
    for name in names:
        (alone,) = [line.what_if.change(task) for line in advice.lines if line.what_if.name == name]
        fields = ("comm_precision", "pipelines_input_dist", "index_dedup", "batch_size", "world_size", "tiers")
        for field in (field for field in fields if getattr(alone, field) != getattr(task, field)):
            assert getattr(changed, field) == getattr(alone, field)


def test_frontiers_give_up_more_and_more_and_say_what(task, advice):
    frontiers = advice.frontiers()
    assert set(frontiers) == {"narrower embeddings", "half-precision weights", "fewer ids per bag"}
    columns = {table.name: table.embedding_dim for table in task.tables}
    for line in frontiers["narrower embeddings"]:
        smaller = line.what_if.change(task).tables
        assert all(table.embedding_dim % 4 == 0 for table in smaller)
        assert line.what_if.given_up == sum(columns[table.name] - table.embedding_dim for table in smaller)
        assert line.what_if.changes_model
    for line in frontiers["fewer ids per bag"]:
        ids = sum(table.pooling_factor for table in line.what_if.change(task).tables)
        assert line.what_if.given_up == pytest.approx(sum(table.pooling_factor for table in task.tables) - ids)
    assert sum(line.what_if.given_up > 0 for line in advice.best()) == len(frontiers)


def test_an_interrupted_call_has_what_was_planned(task, models, advice, monkeypatch):
    calls, solve = [], module.solve_all

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return solve(*args)

    monkeypatch.setattr(module, "solve_all", interrupted)
    found = ns.advise(task, models, QUICK, pairs=1)
    assert len(found.lines) == 1
    assert found.pending == len(advice.lines) - 1
    assert f"Interrupted: {found.pending} what-ifs were not planned." in advice_text(found)
    assert "what if" in advice_html(found)


def test_text_page_and_frame_have_every_line(advice):
    frame = advice.to_frame()
    assert frame["name"].tolist() == ["today", *(line.what_if.name for line in advice.lines)]
    assert frame["gain_ms"].isna().sum() == 1
    text, page = advice_text(advice), advice_html(advice)
    assert all(name in text and name in page for name in frame["name"][1:])
    assert "TrainPipelineSparseDist(model, optimizer, device)" in text
    assert "modelled: compute costs come from a formula" in page


def test_models_without_a_step_cost_model_are_advised_too(models):
    tables = [ns.Table("t", 1000, 16, 2.0)]
    found = ns.advise(ns.ShardingTask(tables, WORLD, BATCH, 2**28), replace(models, step=None), QUICK, pairs=0)
    assert {line.what_if.name for line in found.lines} >= {"half-precision communication", "world_size 1"}


def test_the_least_is_given_up_if_nothing_fits(models):
    tables = [ns.Table("t", 4_000_000, 32, 2.0)]
    task = ns.ShardingTask(tables, WORLD, BATCH, 180 * 2**20)  # 488 MiB of weights on 360 MiB
    found = ns.advise(task, models, QUICK, pairs=0)
    assert found.today.plan is None
    least = found.frontiers()["narrower embeddings"][0]
    freed = sum(table.weight_bytes for table in tables) - sum(t.weight_bytes for t in least.what_if.change(task).tables)
    assert freed >= 4_000_000 * 128 - 360 * 2**20
    assert least.what_if.given_up <= 16
    text = advice_text(found)
    assert "does not fit" in text
    assert "today: " in text


@given(st.lists(st.integers(0, 50), min_size=2, max_size=30).filter(lambda counts: sum(counts[1:]) > 0))
def test_dropped_shares_are_those_of_a_loop(counts):
    bags = [length for length, count in enumerate(counts) for _ in range(count)]
    dropped = dropped_shares(counts, 1.0)
    for k, share in enumerate(dropped):
        assert share == pytest.approx(1 - sum(min(length, k) for length in bags) / sum(bags))


def test_geometric_lengths_have_their_mean_and_drop_what_a_sum_says():
    mean, lengths = 7.0, np.arange(2000)
    shares = (1 / (1 + mean)) * (mean / (1 + mean)) ** lengths
    assert shares @ lengths == pytest.approx(mean)
    for k, dropped in enumerate(dropped_shares(None, mean)):
        assert dropped == pytest.approx(1 - shares @ np.minimum(lengths, k) / mean)


def test_other_batches_have_the_profiles_of_drawn_ids():
    rng = np.random.default_rng(0)
    ids = (50_000 * rng.random(4 * BATCH) ** 4).astype(np.int64)
    whole, half = (observed(ns.Table("t", 50_000, 16, 4.0), [ids[:n]], n // 4) for n in (4 * BATCH, 2 * BATCH))
    task = ns.ShardingTask([whole], WORLD, BATCH, 2**30)
    (smaller,) = with_batch(task, 0.5).tables
    assert smaller.unique_rows == pytest.approx(half.unique_rows, rel=0.02)
    (again,) = with_batch(with_batch(task, 2.0), 0.5).tables
    assert again.unique_rows == pytest.approx(whole.unique_rows, rel=0.02)
    assert np.abs(np.subtract(again.reuse, whole.reuse)).max() < 0.03


def test_faster_links_move_more_bytes_in_the_same_time(models):
    dims = np.array([[100.0, 200.0, 50.0, 70.0]])
    faster = replace(models.comm, bandwidth=2.0)
    np.testing.assert_allclose(faster.backward_ms(2 * dims, BATCH), models.comm.backward_ms(dims, BATCH))


def test_a_doubt_names_the_value_at_which_another_plan_becomes_cheaper(task, models):
    smaller = with_profile(ns.Table("smaller", 40_000, 32, 1.0), BATCH)
    known = replace(smaller, has_assumed_profile=False)
    pooled = replace(task, tables=[known, task.tables[0]], memory_bytes=2**30)
    replicas = [(whole(table, "data_parallel"), rank) for table in pooled.tables for rank in range(WORLD)]
    rows = [each for t in pooled.tables for each in zip(row_shards(t, "row_wise", WORLD), range(WORLD), strict=True)]
    today, other = (priced(Plan(pooled, *zip(*placed, strict=True), "drawn"), models) for placed in (replicas, rows))
    (doubt,) = doubts(today, [other], models, {"reduction": (0.2, 9.0)})
    times = float(re.search(r"reductions: if they cost ([\d.]+) times", doubt.text)[1])
    for at, is_cheaper in ((0.97 * times, False), (1.03 * times, True), (10.0, True)):
        dearer = with_faster_links(models, 1 / at)
        saved_ms = priced(today, dearer).predicted_cost_ms - priced(other, dearer).predicted_cost_ms
        assert (saved_ms > 0) == is_cheaper
    assert doubt.saved_ms == pytest.approx(saved_ms)
    assert "nccl-tests" in doubt.settled_by
    assert not list(doubts(today, [other], models, {"reduction": (0.2, 0.1)}))


def test_a_doubt_names_the_share_of_unique_ids_at_which_another_plan_becomes_cheaper(task, models):
    assumed = with_profile(ns.Table("assumed", 2_000_000, 64, 20.0), BATCH)
    counted = [
        replace(with_profile(ns.Table(name, 2_000_000, 64, pooling_factor), BATCH), has_assumed_profile=False)
        for name, pooling_factor in (("dearer", 21.0), ("further", 6.0))
    ]
    tables = replace(task, tables=[assumed, *counted], memory_bytes=2**34)
    today, other = (
        priced(Plan(tables, tuple(map(whole, tables.tables)), ranks, "drawn"), models)
        for ranks in ((0, 1, 0), (0, 1, 1))
    )
    (doubt,) = doubts(today, [other], models, {"reduction": (0.2, 0.0)})
    share = float(re.search(r"'assumed': if more than (\d+)% of a batch's ids are unique", doubt.text)[1]) / 100
    for exponent, is_cheaper in ((1.128, False), (0.3, True)):
        profile = _profile(assumed, BATCH, exponent)
        changed = replace(tables, tables=[profile, *counted])
        plans = (Plan(changed, tuple(map(whole, changed.tables)), plan.ranks, "drawn") for plan in (today, other))
        of_today, of_other = (priced(plan, models).predicted_cost_ms for plan in plans)
        assert (profile.unique_rows / (BATCH * 20.0) > share) == (of_other < of_today) == is_cheaper
    assert doubt.saved_ms == pytest.approx(of_today - of_other)
    assert "plan.task.ids" in doubt.settled_by


def test_profiles_that_are_doubted_lie_around_the_assumed_one():
    table = ns.Table("t", 2_000_000, 64, 20.0)
    nearly_equal, assumed, steep = (_profile(table, BATCH, exponent) for exponent in (0.3, 1.128, 1.6))
    assert assumed.unique_rows == pytest.approx(with_profile(table, BATCH).unique_rows)
    assert assumed.reuse == pytest.approx(with_profile(table, BATCH).reuse)
    assert steep.unique_rows < 0.5 * assumed.unique_rows < 0.5 * nearly_equal.unique_rows
