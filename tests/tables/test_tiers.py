"""Tiers, parts of a table by popularity, add up to the table; their ids and rows are near those of a later batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.kinds import Tier
from neuroshard_pipeline.tables.popularity import curve_of_counts, curve_of_profile, id_counts, popular_rows
from neuroshard_pipeline.tables.profile import reuse_histogram, with_profile
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import (
    Cuts,
    cuts_of,
    parent_tables,
    possible_tiers,
    tier_tables,
    tiered_task,
    tiers_of,
)

SEQUENCE = Table("items", 10_000, 16, 20.0, pooling="none")
POOLED = Table("users", 10_000, 16, 2.0)


def task(*tables, **fields):
    return ShardingTask(tables, 4, 512, 2**30, **{"local_world_size": 2, "tiers": True} | fields)


@st.composite
def cut_tables(draw):
    """A sequence table with any reuse profile or none, cuts, and a batch size."""
    rows, unique = draw(st.integers(2, 10**7)), draw(st.floats(0.001, 1.0))
    shares = np.array(draw(st.lists(st.integers(0, 5), min_size=17, max_size=17).filter(any)), dtype=float)
    reuse = tuple((shares / shares.sum()).tolist())
    table = Table("t", rows, 8, draw(st.floats(0.01, 300.0)), unique * rows, reuse, pooling="none")
    if draw(st.booleans()):
        table = Table("t", rows, 8, table.pooling_factor, pooling="none")
    hot = draw(st.integers(0, rows))
    return table, Cuts(hot, draw(st.integers(0, rows - hot))), draw(st.sampled_from([64, 65536]))


@given(cut_tables())
def test_tiers_add_up_to_their_table(drawn):
    table, cuts, batch_size = drawn
    whole = with_profile(table, batch_size)
    tiers = tier_tables(whole, cuts, batch_size)
    assert tiers == tier_tables(table, cuts, batch_size) or not cuts
    assert sum(tier.num_embeddings for tier in tiers) == table.num_embeddings
    assert sum(tier.pooling_factor for tier in tiers) == pytest.approx(table.pooling_factor, abs=1e-8)
    rows = sum(tier.unique_rows * np.array(tier.reuse) for tier in tiers)
    np.testing.assert_allclose(rows, whole.unique_rows * np.array(whole.reuse), rtol=1e-6, atol=0.01)
    if cuts:
        popular, share = 0, curve_of_profile(table, batch_size)
        for tier in tiers:
            assert tier.tier.row_offset == popular
            expected = np.diff(share.share_of([popular, popular + tier.num_embeddings]))[0]
            assert tier.pooling_factor == pytest.approx(table.pooling_factor * expected, rel=1e-6, abs=1e-8)
            popular += tier.num_embeddings
        for tier, hotter in zip(tiers[1:], tiers, strict=False):  # a hotter tier has at least as many ids per row
            ids_per_row = [each.pooling_factor / each.num_embeddings for each in (hotter, tier)]
            assert ids_per_row[0] >= ids_per_row[1] * (1 - 1e-6) - 1e-9


def test_tiers_say_which_rows_they_hold():
    tiers = tier_tables(SEQUENCE, Cuts(100, 400), 512)
    assert [(tier.name, tier.tier, tier.num_embeddings) for tier in tiers] == [
        ("items/hot", Tier("hot", "items", 0), 100),
        ("items/host", Tier("host", "items", 100), 400),
        ("items/cold", Tier("cold", "items", 500), 9500),
    ]
    assert tier_tables(SEQUENCE, Cuts(), 512) == (SEQUENCE,)
    assert [tier.name for tier in tier_tables(SEQUENCE, Cuts(0, 10_000), 512)] == ["items/host"]


def test_tiers_of_a_zipf_table_get_the_ids_and_rows_of_a_later_batch():
    rng, rows, count = np.random.default_rng(1), 50_000, 200_000
    popularity = np.arange(1, rows + 1.0) ** -1.0
    first, later = (rng.choice(rows, size=count, p=popularity / popularity.sum()) for _ in range(2))
    unique, reuse, _ = reuse_histogram(first)
    table = Table("t", rows, 8, count / 1000, float(unique), tuple(reuse.tolist()), pooling="none")
    counts = id_counts([first], rows)
    tiers = tier_tables(table, Cuts(500, 5000), 1000, curve_of_counts(counts))
    place = np.empty(rows, dtype=np.int64)
    place[popular_rows(counts, rows)] = np.arange(rows)
    for tier in tiers:
        own = place[later] - tier.tier.row_offset
        own = own[(own >= 0) & (own < tier.num_embeddings)]
        assert tier.pooling_factor * 1000 == pytest.approx(len(own), rel=0.08)
        assert tier.unique_rows == pytest.approx(len(np.unique(own)), rel=0.1)


def test_a_task_gets_tiers_and_its_tables_back():
    given_task = task(SEQUENCE, POOLED, constraints=Constraints([TableConstraint("items", min_width=8)]))
    tiered = tiered_task(given_task, {"items": Cuts(100, 400)})
    assert [table.name for table in tiered.tables] == ["items/hot", "items/host", "items/cold", "users"]
    assert tiered.constraints.of("items/cold").min_width == 8
    assert [tiered.possible_types(table) for table in tiered.tables[:3]] == [
        ("data_parallel",),
        ("host_row_wise",),
        ("column_wise", "row_wise"),
    ]
    assert cuts_of(tiered) == {"items": Cuts(100, 400)}
    assert tuple(tiers_of(tiered)["items"]) == tiered.tables[:3]
    items, users = parent_tables(tiered)
    whole = with_profile(SEQUENCE, 512)
    assert users == POOLED
    assert (items.name, items.num_embeddings, items.tier) == ("items", 10_000, None)
    np.testing.assert_allclose((items.pooling_factor, items.unique_rows), (20.0, whole.unique_rows), rtol=1e-6)
    np.testing.assert_allclose(items.reuse, whole.reuse, atol=1e-9)


@pytest.mark.parametrize(
    ("constraint", "fields", "expected"),
    [
        ({}, {}, ("hot", "host", "cold")),
        ({}, {"local_world_size": None}, ("hot", "cold")),
        ({"split": False}, {}, ()),
        ({"forbidden_ranks": [3]}, {}, ("cold",)),
        ({"sharding_types": ["row_wise", "data_parallel"]}, {}, ("hot", "cold")),
    ],
)
def test_constraints_decide_which_tiers_are_possible(constraint, fields, expected):
    limited = task(SEQUENCE, constraints=Constraints([TableConstraint("items", **constraint)]), **fields)
    assert possible_tiers(limited, SEQUENCE) == expected
    assert possible_tiers(limited, POOLED) == ()
    if "hot" not in expected:
        with pytest.raises(TaskError, match="'items' can have no hot tier"):
            tiered_task(limited, {"items": Cuts(10)})


def test_impossible_tiers_are_refused():
    with pytest.raises(TaskError, match="only sequence tables"):
        tier_tables(POOLED, Cuts(10), 512)
    with pytest.raises(TaskError, match="only 10000 rows for Cuts"):
        tier_tables(SEQUENCE, Cuts(9000, 2000), 512)
    with pytest.raises(TaskError, match="set tiers to true"):
        tiered_task(task(SEQUENCE, tiers=False), {"items": Cuts(10)})
    with pytest.raises(TaskError, match="'other', which the task does not have"):
        tiered_task(task(SEQUENCE), {"other": Cuts(10)})
    with pytest.raises(TaskError, match="negative"):
        Cuts(-1)
    with pytest.raises(TaskError, match="kind 'warm' is not one of hot, host, cold"):
        Tier("warm", "items", 0)
    with pytest.raises(TaskError, match="only sequence tables"):
        Table("users/hot", 10, 8, 1.0, tier=Tier("hot", "users", 0))
    with pytest.raises(TaskError, match="host_row_wise shards have all 16 columns"):
        Shard(SEQUENCE, 0, 8, sharding_type="host_row_wise")
