"""Batches of ids from click logs and Parquet files."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.criteo import hashed_ids
from neuroshard_pipeline.tables.id_batches import counted_tables, observed, read_id_batches
from neuroshard_pipeline.tables.popularity import curve_of_counts, id_counts
from neuroshard_pipeline.tables.table import Table

WORDS, CLICKS = Table("words", 100, 8, 3.0, pooling="none"), Table("clicks", 50, 8, 1.0, pooling="none")


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_cells_are_the_ids_of_samples(tmp_path):
    lists = [[1, 2], [], [3], [4, 5, 6], [7]]
    path = write(tmp_path / "ids.parquet", words=lists, clicks=[[at] for at in range(5)], label=[0] * 5)
    found = read_id_batches(path, [WORDS, CLICKS], batch_size=2, num_batches=2)
    assert [ids.tolist() for ids in found["words"]] == [[1, 2], [3, 4, 5, 6]]
    assert [ids.tolist() for ids in found["clicks"]] == [[0, 1], [2, 3]]


def test_tables_get_the_profile_of_the_batches_and_sequence_tables_the_curve_of_all(tmp_path):
    lists = [[1] * 8, [1, 2], [1] * 6 + [2, 3], [2, 4]]
    path = write(tmp_path / "ids.parquet", words=lists, clicks=[[0], [0], [0], []])
    users = replace(CLICKS, pooling="sum")
    words, clicks = counted_tables(path, [WORDS, users], batch_size=2, num_batches=2)
    assert (words.pooling_factor, words.unique_rows, clicks.pooling_factor) == (5.0, 3.0, 0.75)
    assert words.reuse[:4] == pytest.approx((3 / 6, 1 / 6, 0, 1 / 6))
    counts = id_counts([np.concatenate([np.array(of) for of in lists])], 100)
    assert words.popularity == curve_of_counts(counts).points
    assert clicks.popularity is None
    assert replace(words, popularity=None) == observed(words, [[*lists[0], *lists[1]], [*lists[2], *lists[3]]], 2)


def test_a_table_without_ids_gets_no_curve(tmp_path):
    path = write(tmp_path / "ids.parquet", words=pa.array([[], []], pa.list_(pa.int64())))
    (words,) = counted_tables(path, [WORDS], batch_size=1, num_batches=2)
    assert (words.pooling_factor, words.popularity) == (0.25, None)


def test_criteo_categories_are_hashed_to_the_rows_of_26_tables(tmp_path):
    rows = ["\t".join(["0", *["1"] * 13, *[f"{line}{at:02x}" for at in range(26)]]) for line in range(5)]
    path = tmp_path / "day_0"
    path.write_text("\n".join(rows) + "\n")
    tables = [Table(f"C{at}", 1000 + at, 8, 1.0, pooling="none") for at in range(26)]
    found = read_id_batches(path, tables, batch_size=2, num_batches=2)
    expected = hashed_ids(np.array([int("203", 16), int("303", 16)]), 1003, 3).indices
    assert found["C3"][1].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"words": [[1]] * 4, "clicks": [[1]] * 4}, "holds 1 whole batches of 3 samples, not 2"),
        ({"words": [[1]] * 9}, "has no column 'clicks'"),
        ({"words": [[1]] * 9, "clicks": [1] * 9}, "column 'clicks' does not hold lists of whole numbers"),
        ({"words": [["a"]] * 9, "clicks": [[1]] * 9}, "column 'words' does not hold lists of whole numbers"),
        ({"words": [[1]] * 9, "clicks": [[50]] * 9}, "column 'clicks' has ids 50..50, but the table has 50 rows"),
    ],
)
def test_unusable_parquet_files_are_refused_with_the_reason(tmp_path, columns, message):
    with pytest.raises(TableFileError, match=message):
        read_id_batches(write(tmp_path / "ids.parquet", **columns), [WORDS, CLICKS], 3, 2)


def test_other_unusable_files_are_refused_with_the_reason(tmp_path):
    with pytest.raises(TableFileError, match="no such file"):
        read_id_batches(tmp_path / "missing.parquet", [WORDS], 2, 2)
    (tmp_path / "broken.parquet").write_text("no table")
    with pytest.raises(TableFileError, match="not a readable Parquet file"):
        read_id_batches(tmp_path / "broken.parquet", [WORDS], 2, 2)
    (tmp_path / "day_0").write_text("0\n")
    with pytest.raises(TableFileError, match="26 categories need a table each, but 1 are given"):
        read_id_batches(tmp_path / "day_0", [WORDS], 2, 2)
