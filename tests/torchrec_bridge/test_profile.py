"""Id statistics of batches, compared with plain counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import KeyedJaggedTensor

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import REUSE_BIN_EDGES, Table
from neuroshard_pipeline.torchrec_bridge import profile_from_batches

pytestmark = QUIET


def batch(*features: list[list[int]], keys: str = "ab") -> KeyedJaggedTensor:
    """A tensor of ids; each of `features` is given as one list of ids per sample."""
    samples = [sample for feature in features for sample in feature]
    ids = [row for sample in samples for row in sample]
    lengths = torch.tensor([len(sample) for sample in samples])
    return KeyedJaggedTensor(list(keys[: len(features)]), torch.tensor(ids, dtype=torch.int64), lengths=lengths)


def test_means_over_global_batches():
    batches = [batch([[1, 1, 2], [], [3]]), batch([[1], [2, 2, 2], [5]])]  # global batches of 2: 3, 2 and 4 ids
    (table,) = profile_from_batches(batches, [Table("a", 10, 8, 99.0)], batch_size=2)
    assert table.pooling_factor == (3 + 2 + 4) / 6
    assert table.unique_rows == (2 + 2 + 2) / 3
    # Lookups by row: {1: 2, 2: 1}, {3: 1, 1: 1}, {2: 3, 5: 1}.
    assert table.reuse[:3] == pytest.approx((4 / 6, 1 / 6, 1 / 6))
    assert sum(table.reuse) == pytest.approx(1)


def test_samples_beyond_the_last_global_batch_are_not_used():
    (table,) = profile_from_batches([batch([[1], [2], [9, 9, 9, 9]])], [Table("a", 10, 8, 1.0)], batch_size=2)
    assert table.pooling_factor == 1.0
    assert table.unique_rows == 2


def test_features_of_one_table_are_counted_together():
    tables = [Table("shared", 10, 8, 1.0)]
    (table,) = profile_from_batches([batch([[1, 2]], [[2, 3]])], tables, 1, {"shared": ["a", "b"]})
    assert table.pooling_factor == 4
    assert table.unique_rows == 3


def test_features_may_be_in_different_tensors():
    tables = [Table("a", 10, 8, 1.0), Table("b", 10, 8, 1.0)]
    first, second = profile_from_batches([batch([[1]], keys="a"), batch([[1, 2]], keys="b")], tables, batch_size=1)
    assert (first.pooling_factor, second.pooling_factor) == (1, 2)


def test_random_batches_match_a_plain_count():
    rng = np.random.default_rng(0)
    samples = [rng.zipf(1.5, rng.integers(0, 20)).clip(max=99).tolist() for _ in range(60)]
    batches = [batch(samples[:10]), batch(samples[10:45]), batch(samples[45:])]
    (table,) = profile_from_batches(batches, [Table("a", 100, 8, 1.0)], batch_size=60)
    counts = Counter(row for sample in samples for row in sample)
    assert table.unique_rows == len(counts)
    assert table.pooling_factor == pytest.approx(sum(counts.values()) / 60)
    edges = [0, *REUSE_BIN_EDGES, np.inf]
    for share, low, high in zip(table.reuse, edges[:-1], edges[1:], strict=True):
        assert share == pytest.approx(sum(low < count <= high for count in counts.values()) / len(counts))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no batches"),
        ([batch([[1], [2]], keys="z")], "'a': no batch holds its feature 'a'; they hold z"),
        ([batch([[1], [2]])], "'a': the batches hold 2 samples, fewer than one global batch of 4"),
        ([batch([[1], [2], [10], []])], "'a': feature 'a' holds the id 10, outside 0..9"),
        ([batch([[1], [2], [-1], []])], "'a': feature 'a' holds the id -1"),
        ([batch([[], [], [], []])], "'a': 1 global batches of 4 samples hold no ids of it"),
    ],
)
def test_bad_batches_are_refused_with_the_reason(batches, message):
    with pytest.raises(TaskError, match=message):
        profile_from_batches(batches, [Table("a", 10, 8, 1.0)], batch_size=4)


def test_features_of_a_table_with_different_numbers_of_global_batches_are_refused():
    batches = [batch([[1], [2]], [[1], [2]]), batch([[1], [2]], keys="a")]
    with pytest.raises(
        TaskError, match="'shared': its features have different numbers of global batches: 'a' 2, 'b' 1"
    ):
        profile_from_batches(batches, [Table("shared", 10, 8, 1.0)], 2, {"shared": ["a", "b"]})
