"""Generated click logs in Criteo's format are read line by line; the error of a malformed line names it."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from tables.criteo_files import criteo_line, write_criteo

from neuroshard_pipeline.tables.criteo import MISSING, CriteoFileError, hashed_ids, read_criteo

GOOD = criteo_line(0, [""] * 13, [""] * 26)


@pytest.mark.parametrize("name", ["log.txt", "log.tsv.gz"])
@pytest.mark.parametrize("batch_size", [1, 7, 100, 1000])
def test_every_sample_is_read_in_order(tmp_path, name, batch_size):
    written = write_criteo(tmp_path / name, 100, seed=0)
    batches = list(read_criteo(tmp_path / name, batch_size))
    assert [len(batch.labels) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    labels = np.concatenate([batch.labels for batch in batches]).tolist()
    integers = np.concatenate([batch.integers for batch in batches])
    categories = np.concatenate([batch.categories for batch in batches]).tolist()
    assert labels == [label for label, _, _ in written]
    counts = [[max(int(x or 0), 0) for x in line] for _, line, _ in written]
    np.testing.assert_allclose(np.expm1(integers), counts, rtol=1e-4, atol=1e-4)
    assert categories == [[int(x, 16) if x else MISSING for x in line] for _, _, line in written]


def test_lines_after_the_first_batch_are_not_read_for_it(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(GOOD + "\n" + "broken\n")
    assert next(read_criteo(path, 1)).labels.tolist() == [0.0]


def test_windows_line_ends_are_removed(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(criteo_line(1, ["1"] * 13, ["ff"] * 26).encode() + b"\r\n")
    assert next(read_criteo(path, 1)).categories.tolist() == [[255] * 26]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (GOOD[:-1], ["39 fields", "40"]),
        (GOOD + "\t", ["41 fields", "40"]),
        ("", ["1 fields"]),
        ("2" + GOOD[1:], ["label", "'2'", "0 or 1"]),
        (criteo_line(0, ["1.5", *[""] * 12], [""] * 26), ["I1", "'1.5'", "whole number"]),
        (criteo_line(0, [*[""] * 12, "1_0"], [""] * 26), ["I13", "'1_0'"]),
        (criteo_line(0, [""] * 13, ["xyz", *[""] * 25]), ["C1", "'xyz'", "hexadecimal"]),
        (criteo_line(0, [""] * 13, [*[""] * 25, "0123456789"]), ["C26", "'0123456789'"]),
        (criteo_line(0, [""] * 13, [*[""] * 25, "ä"]), ["C26"]),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, words):
    path = tmp_path / "log.txt"
    path.write_text(f"{GOOD}\n{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(CriteoFileError) as caught:
        list(read_criteo(path, 10))
    for word in ["log.txt: line 3:", *words]:
        assert word in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(CriteoFileError, match=r"nowhere\.txt: no such file"):
        next(read_criteo(tmp_path / "nowhere.txt", 1))
    (tmp_path / "log.gz").write_bytes(b"plain")
    with pytest.raises(CriteoFileError, match=r"log\.gz: not a complete gzip file"):
        next(read_criteo(tmp_path / "log.gz", 1))
    (tmp_path / "cut.gz").write_bytes(gzip.compress((GOOD + "\n").encode() * 1000)[:-20])
    with pytest.raises(CriteoFileError, match=r"cut\.gz: not a complete gzip file"):
        list(read_criteo(tmp_path / "cut.gz", 10_000))


def test_hashing_gives_one_row_per_present_category():
    categories = np.array([5, MISSING, 5, 2**32 - 1, MISSING], dtype=np.int64)
    ids = hashed_ids(categories, 1000, feature=3)
    assert ids.offsets.tolist() == [0, 1, 1, 2, 3, 3]
    assert ids.indices[0] == ids.indices[1] != ids.indices[2]


def test_hashing_spreads_values_and_features():
    values = np.arange(100_000, dtype=np.int64)
    first, second = (hashed_ids(values, 100, feature).indices for feature in (0, 1))
    counts = np.bincount(first, minlength=100)
    assert counts.min() > 800
    assert counts.max() < 1200
    assert np.mean(first == second) < 0.02
