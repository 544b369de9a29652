"""Table and Shard refuse impossible values."""

import math
from dataclasses import replace

import pytest

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import Shard, Table, whole

TABLE = Table("t", 1000, 16, 2.0)
ONCE = (1.0, *(0.0,) * 16)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": " "}, "name must be a string that is not empty"),
        ({"name": 3}, "table 3: the name must be a string"),
        ({"num_embeddings": 0}, "num_embeddings 0"),
        ({"num_embeddings": 2**41}, "num_embeddings 2199023255552"),
        ({"num_embeddings": 10.0}, "must be a whole number from 1"),
        ({"num_embeddings": True}, "must be a whole number from 1"),
        ({"embedding_dim": -4}, "embedding_dim -4"),
        ({"embedding_dim": 18}, "pad the table to 20"),
        ({"embedding_dim": 2**15}, "embedding_dim 32768"),
        ({"pooling_factor": 0.0}, "pooling_factor 0.0"),
        ({"pooling_factor": math.nan}, "pooling_factor nan"),
        ({"pooling_factor": math.inf}, "pooling_factor inf"),
        ({"data_type": "int3"}, "use one of fp32"),
        ({"unique_rows": 5.0}, "belong together"),
        ({"reuse": ONCE}, "belong together"),
        ({"unique_rows": 1001.0, "reuse": ONCE}, "at most num_embeddings 1000"),
        ({"unique_rows": 5.0, "reuse": ONCE[:-1]}, "17 shares"),
        ({"unique_rows": 5.0, "reuse": (0.5, *(0.0,) * 16)}, "sum to 0.5000"),
        ({"unique_rows": 5.0, "reuse": (2.0, -1.0, *(0.0,) * 15)}, "between 0 and 1"),
    ],
)
def test_impossible_tables_are_refused(change, named):
    with pytest.raises(TaskError, match=named):
        replace(TABLE, **change)


def test_whole_covers_all_columns():
    shard = whole(TABLE)
    assert (shard.column_offset, shard.embedding_dim) == (0, 16)
    assert shard.weight_bytes == TABLE.weight_bytes == 1000 * 16 * 4
    assert whole(replace(TABLE, data_type="fp16")).weight_bytes == 1000 * 16 * 2


@pytest.mark.parametrize(
    ("offset", "width", "reason"),
    [
        (-4, 8, r"columns -4\.\.4 lie outside the table's 0\.\.16"),
        (0, 20, r"columns 0\.\.20 lie outside"),
        (12, 8, r"columns 12\.\.20 lie outside"),
        (0, 0, r"columns 0\.\.0 lie outside"),
        (0, 6, "width 6 is not a multiple of 4"),
    ],
)
def test_impossible_shards_are_refused(offset, width, reason):
    with pytest.raises(TaskError, match=f"table 't': shard {reason}"):
        Shard(TABLE, offset, width)
