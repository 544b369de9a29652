"""Points of popularity curves: as text, in tables, files and tiers; and points that are refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.curve_points import points_of_text, points_text
from neuroshard_pipeline.tables.popularity import curve_of, curve_of_counts, curve_of_profile, curve_source, id_counts
from neuroshard_pipeline.tables.table import Table, scale_rows
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, cuts_of, parent_tables, tier_tables, tiered_task

ITEMS = Table("items", 1000, 8, 20.0, pooling="none", popularity=((10.0, 0.5), (100.0, 0.8)))


@st.composite
def counted_tables(draw):
    """A sequence table with the curve of counted ids."""
    rows, rng = draw(st.integers(2, 5000)), np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = np.floor(rows * rng.random(draw(st.integers(1, 4000))) ** draw(st.floats(1.0, 6.0))).astype(np.int64)
    points = curve_of_counts(id_counts([ids], rows)).points
    return Table("t", rows, 8, draw(st.floats(0.01, 300.0)), pooling="none", popularity=points)


@given(counted_tables())
def test_counted_curves_are_valid_points_and_restored_from_text(table):
    assert points_of_text(points_text(table.popularity)) == table.popularity
    assert curve_of(table, 64).points == table.popularity


@given(counted_tables(), st.data())
def test_tiers_have_the_parts_of_the_curve_and_give_it_back(table, data):
    hot = data.draw(st.integers(0, table.num_embeddings))
    cuts = Cuts(hot, data.draw(st.integers(0, table.num_embeddings - hot)))
    assume(cuts)
    tiers = tier_tables(table, cuts, 64)
    curve, whole = curve_of(table, 64), sum(tier.pooling_factor for tier in tiers)
    for tier in tiers:
        first = tier.tier.row_offset
        rows = np.linspace(0, tier.num_embeddings, 9)
        expected = curve.share_of(first + rows) - curve.share_of(first)
        np.testing.assert_allclose(curve_of(tier, 64).share_of(rows) * tier.pooling_factor / whole, expected, atol=1e-6)
    task = tiered_task(ShardingTask([table], 4, 64, 2**30, local_world_size=2, tiers=True), {"t": cuts})
    (joined,) = parent_tables(task)
    rows = np.linspace(0, table.num_embeddings, 50)
    assert cuts_of(task) == {"t": cuts}
    np.testing.assert_allclose(curve_of(joined, 64).share_of(rows), curve.share_of(rows), atol=1e-6)


def test_a_table_without_points_has_the_curve_of_its_profile():
    unknown = replace(ITEMS, popularity=None)
    assert curve_of(ITEMS, 64).share_of([5, 10, 550, 1000]).tolist() == pytest.approx([0.25, 0.5, 0.9, 1.0])
    assert curve_of(unknown, 64).points == curve_of_profile(unknown, 64).points != curve_of(ITEMS, 64).points
    assert curve_source(ITEMS) != curve_source(unknown) == "the assumed reuse profile of one batch"


def test_a_table_of_fewer_rows_keeps_the_shares():
    assert scale_rows(ITEMS, 10).popularity == ((1.0, 0.5), (10.0, 0.8))
    assert scale_rows(replace(ITEMS, popularity=None), 10).popularity is None


REFUSED = [
    ("10:0.5 10:0.6", "10 rows come after 10; rows must ascend"),
    ("10:0.5 2000:0.6", "2000 rows come after 10; rows must ascend and be at most 1000"),
    ("10:0.5 100:0.4", "the share 0.4 of 100 rows must be at least 0.5 and at most 1"),
    ("10:1.5", "the share 1.5 of 10 rows must be at least 0 and at most 1"),
    ("nan:0.5", "rows must ascend"),
    ("10:nan", "the share nan of 10 rows"),
    ("1000:0.9", "all 1000 rows must have the share 1, not 0.9"),
    ("100:0.05", "rows after the first 100 get more ids than these"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_impossible_points_are_refused(text, message):
    with pytest.raises(TaskError, match=message):
        replace(ITEMS, popularity=points_of_text(text))


def test_a_table_without_any_point_is_refused():
    with pytest.raises(TaskError, match="popularity has no points"):
        replace(ITEMS, popularity=())


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_table_file_holds_points_as_text(tmp_path, suffix):
    path = tmp_path / f"tables{suffix}"
    row = {"table": "items", "num_embeddings": 1000, "embedding_dim": 8, "pooling_factor": 20.0, "pooling": "none"}
    for text, points in (("10:0.5 100:0.8", ITEMS.popularity), ("", None)):
        _write(path, row | {"popularity": text})
        assert read_tables(path) == [replace(ITEMS, popularity=points)]
    for text, message in (("10=0.5", "no popularity curve; give rows and shares"), (REFUSED[0])):
        _write(path, row | {"popularity": text})
        with pytest.raises(TableFileError, match=message):
            read_tables(path)


def _write(path, row):
    import pandas as pd

    frame = pd.DataFrame([row])
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_json(path, orient="records")
