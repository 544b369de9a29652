import pytest

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

TABLE = Table("clicks", num_embeddings=1000, embedding_dim=16, pooling_factor=2.5)


def a_task(optimizer="sgd", memory_bytes=2**30, table=TABLE):
    return ShardingTask([table], world_size=2, batch_size=100, memory_bytes=memory_bytes, optimizer=optimizer)


@pytest.mark.parametrize(
    ("optimizer", "width", "expected"),
    [("sgd", 16, 64_000), ("rowwise_adagrad", 16, 68_000), ("rowwise_adagrad", 8, 36_000), ("adam", 16, 192_000)],
)
def test_optimizer_state_counts(optimizer, width, expected):
    assert WEIGHTS_AND_OPTIMIZER.shard_bytes(Shard(TABLE, 0, width), a_task(optimizer)) == expected


def test_half_precision_halves_the_weights_but_not_the_state():
    half = Table("half", 1000, 16, 2.5, data_type="fp16")
    assert WEIGHTS_AND_OPTIMIZER.shard_bytes(whole(half), a_task("rowwise_adagrad")) == 32_000 + 4_000


def test_buffers_count_if_the_parameters_say_so():
    memory = MemoryModel(optimizer_state=False, input_buffers=True, output_buffers=True, reserve_fraction=0.0)
    ids, offsets, outputs = 250 * 8, 101 * 8, 2 * 100 * 16 * 4
    assert memory.shard_bytes(whole(TABLE), a_task()) == 64_000 + ids + offsets + outputs


def test_the_reserve_lowers_every_limit():
    memory = WEIGHTS_AND_OPTIMIZER.model_copy(update={"reserve_fraction": 0.25})
    assert memory.limits(a_task(memory_bytes=[1000, 2000])) == (750, 1500)


@pytest.mark.parametrize("field", [{"reserve_fraction": 1.0}, {"reserve_fraction": -0.1}, {"unknown": 1}])
def test_impossible_parameters_are_refused(field):
    values = {**WEIGHTS_AND_OPTIMIZER.model_dump(), **field}
    with pytest.raises(ValueError, match=next(iter(field))):
        MemoryModel(**values)


def test_a_plan_beyond_the_memory_of_a_rank_is_refused():
    with pytest.raises(PlanError, match=r"rank 1 needs 64000 bytes .* has 63999: 1 bytes too many"):
        Plan(a_task(memory_bytes=[64_000, 63_999]), (whole(TABLE),), (1,), "by hand")
    Plan(a_task(memory_bytes=[64_000, 63_999]), (whole(TABLE),), (0,), "by hand")
