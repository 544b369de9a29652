from dataclasses import replace

import pytest

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.cost_models.caveats import step_extrapolations
from neuroshard_pipeline.cost_models.training_range import comm_caveats, comm_range, compute_caveats, compute_range
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

SMALL, LARGE = Table("small", 100, 8, 1.0), Table("large", 5000, 64, 20.0, data_type="fp16")
COMPUTE = compute_range(
    [ComputeSample("a", 64, (Shard(SMALL, 0, 8),)), ComputeSample("b", 512, (Shard(LARGE, 0, 32),), "rowwise_adagrad")]
)
COMM = comm_range([CommSample("a", 64, (8, 8), (0.0, 0.0)), CommSample("b", 64, (8,) * 8, (0.0,) * 8)])


def task(*tables, **changes):
    return replace(ShardingTask(tables, 4, 256, 2**30), **changes)


def test_nothing_is_said_of_values_inside_the_training_ranges_or_of_narrower_tables():
    middle = Table("middle", 1000, 4, 5.0)  # narrower than all training shards; a search may cut any table so narrow
    assert compute_caveats(task(middle), COMPUTE) == []
    assert compute_caveats(task(middle, optimizer="rowwise_adagrad"), COMPUTE) == []
    assert comm_caveats(task(middle, world_size=5, batch_size=64), COMM) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (task(Table("t", 99, 8, 1.0)), "num_embeddings 99 of table 't': {} 100 to 5,000"),
        (task(Table("t", 200, 64, 1.0)), "embedding_dim 64 of table 't': {} 8 to 32"),
        (task(Table("t", 200, 8, 0.5)), "pooling_factor 0.5 of table 't': {} 1 to 20"),
        (task(SMALL, batch_size=1024), "batch_size 1024: {} 64 to 512"),
        (task(SMALL, optimizer="adam"), "optimizer adam: {} rowwise_adagrad, sgd"),
    ],
)
def test_what_lies_outside_is_named_with_its_value_and_the_range(asked, told):
    assert compute_caveats(asked, COMPUTE) == [told.format("the compute cost model was trained on")]


def test_data_types_that_no_sample_has_are_named():
    only_single = compute_range([ComputeSample("a", 256, (Shard(SMALL, 0, 8),))])
    half = replace(SMALL, data_type="fp16")
    assert compute_caveats(task(half), only_single) == ["data_type fp16: the compute cost model was trained on fp32"]


def test_several_tables_are_counted():
    (told,) = compute_caveats(task(*(Table(f"t{index}", 10, 8, 1.0) for index in range(3))), COMPUTE)
    assert "table 't0' and 2 more" in told


def test_collectives_have_ranges_of_their_own():
    told = comm_caveats(task(SMALL, world_size=16), COMM)
    assert told == [
        "batch_size 256: the communication cost model was trained on 64",
        "world_size 16: the communication cost model was trained on 2 to 8",
    ]


def test_a_single_rank_that_does_not_communicate_has_no_caveat_about_communication():
    assert comm_caveats(task(SMALL, world_size=1), COMM) == []
    extrapolated = list(step_extrapolations(task(SMALL, world_size=1), load_cost_models("h100").step))
    assert extrapolated == ["extrapolated: world_size 1: costs of steps were fitted for 2 to 128 ranks"]
