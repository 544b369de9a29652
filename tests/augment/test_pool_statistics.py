"""The comparison with published statistics accepts generated pools and finds differences."""

from dataclasses import replace

import numpy as np
import pytest
from augment.published_shape import problems
from pool_statistics import BIN_LABELS, pool_statistics

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.tables.frames import tables_from_frame, tables_to_frame
from neuroshard_pipeline.tables.ids import draw_ids


@pytest.fixture(scope="module")
def pool():
    return generate_pool(PoolParams(num_tables=300, batch_size=512, row_scale=128.0, seed=0))


def test_statistics_count_ids_and_rows(pool):
    statistics = pool_statistics(pool.head(5), batch_size=512, seed=2)
    ids = [draw_ids(table, 512, 2).indices for table in tables_from_frame(pool.head(5))]
    assert statistics.indices_by_bin.sum() == sum(map(len, ids))
    assert statistics.rows_by_bin.sum() == sum(len(np.unique(one)) for one in ids)
    assert statistics.tables == 5


def test_a_generated_pool_has_no_problems(pool):
    assert problems(pool_statistics(pool, batch_size=512, seed=0)) == []


def test_pool_with_other_statistics_has_problems(pool):
    once = (1.0, *(0.0,) * 16)
    tables = [
        replace(table, unique_rows=min(300.0, table.num_embeddings), reuse=once, pooling_factor=3.0)
        for table in tables_from_frame(pool)
    ]
    found = " ".join(problems(pool_statistics(tables_to_frame(tables), batch_size=512, seed=0)))
    for part in (
        "pooling factor is off by -81",
        "unique rows per table",
        "histogram of unique_rows",
        "histogram of indices",
    ):
        assert part in found


def test_bins_are_labelled_by_counts():
    assert BIN_LABELS[:4] == ("1", "2", "3-4", "5-8")
    assert BIN_LABELS[-2:] == ("16385-32768", ">32768")
    assert len(BIN_LABELS) == 17
