"""ShardingTask refuses impossible values."""

import pytest

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

TABLES = [Table("a", 10, 8, 1.0), Table("b", 10, 8, 1.0)]
ONCE = (1.0, *(0.0,) * 16)
GOOD = {"tables": TABLES, "world_size": 2, "batch_size": 64, "memory_bytes": 1000}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tables": []}, "at least one table"),
        ({"tables": [TABLES[0], TABLES[0]]}, "'a' occurs 2 times"),
        ({"world_size": 0}, "world_size 0"),
        ({"world_size": 2.0}, "world_size 2.0"),
        ({"batch_size": -1}, "batch_size -1"),
        ({"memory_bytes": 0}, "memory_bytes 0 must be a whole number from 1"),
        ({"memory_bytes": [1, 2, 3]}, "3 numbers for 2 ranks"),
        ({"optimizer": "lion"}, "use one of sgd"),
        ({"tables": None}, "tables must be a sequence of Table objects, not None"),
        ({"tables": TABLES[0]}, "tables must be a sequence of Table objects"),
        ({"task_id": 3}, "task_id 3"),
        ({"comm_precision": ["fp16"]}, "comm_precision .'fp16'. must be a string"),
        ({"tiers": "no"}, "tiers 'no' must be True or False"),
        ({"index_dedup": None}, "index_dedup None"),
        ({"pipelines_input_dist": 1}, "pipelines_input_dist 1"),
        ({"constraints": None}, "constraints None"),
        ({"constraints": {"a": {"ranks": [0]}}}, r"must be made with Constraints\(...\) or read_constraints\(path\)"),
        ({"tables": [Table("a", 1000, 8, 3.0, 300.0, ONCE)]}, "'a': unique_rows 300.0 .* 192 ids .*batch_size 64"),
    ],
)
def test_impossible_tasks_are_refused(change, named):
    with pytest.raises(TaskError, match=named):
        ShardingTask(**{**GOOD, **change})


def test_profiles_of_rounded_pooling_factors_are_allowed():
    """64 samples with 1.49 ids each look up 95 rows at most; the pooling factor was rounded to 1."""
    assert ShardingTask(**{**GOOD, "tables": [Table("a", 1000, 8, 1.0, 95.0, ONCE)]}).batch_size == 64


def test_memory_limits_are_one_per_rank():
    assert ShardingTask(**GOOD).memory_limits == (1000, 1000)
    assert ShardingTask(**{**GOOD, "memory_bytes": [5, 6]}).memory_limits == (5, 6)
