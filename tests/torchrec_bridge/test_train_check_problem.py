"""What the training check trains: tables of a file or a task, samples that are drawn or read; what it refuses."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
from tables.criteo_files import write_criteo
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.training_params import PARAMS

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.tables.criteo import MISSING, read_criteo
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainTaskParams
from neuroshard_pipeline.torchrec_bridge.train_check.problem import state_problem
from neuroshard_pipeline.torchrec_bridge.train_check.sharding import dense_memory_bytes

pytestmark = QUIET

BATCH_SIZE = 32
#: Of all models and dense modes, where they do not matter, only one.
DHEN = PARAMS.model_copy(update={"models": ("dhen",), "dense": ("ddp",)})


@functools.cache
def tasks() -> pd.DataFrame:
    tables = [with_profile(Table(f"t{index}", 100 * (index + 1), 8, 2.0), BATCH_SIZE) for index in range(3)]
    dotted = [with_profile(Table("user.id", 100, 8, 2.0), BATCH_SIZE)]
    odd = {"pooling": "none", "num_features": 2, "is_weighted": True}
    unusual = [
        ShardingTask([Table(field, 100, 8, 2.0, **{field: value})], 4, BATCH_SIZE, 2**20, task_id=field)
        for field, value in odd.items()
    ]
    return tasks_to_frame(
        [
            ShardingTask(tables, 4, BATCH_SIZE, 2**20, task_id="drawn", local_world_size=4),
            *unusual,
            ShardingTask(dotted, 4, BATCH_SIZE, 2**20, task_id="dotted"),
        ]
    )


def params(**changes) -> TrainTaskParams:
    given = {
        "tables": "data/01_raw/criteo_kaggle.csv",
        "row_scale": 1000.0,
        "task_id": None,
        "world_size": 2,
        "local_world_size": None,
        "batch_size": BATCH_SIZE,
        "memory_gib": 0.5,
        "criteo_file": None,
        "num_batches": 3,
        "seed": 0,
    }
    return TrainTaskParams(**given | changes)


def test_a_tasks_tables_are_trained_on_the_given_number_of_ranks():
    task, batches = state_problem(tasks(), params(task_id="drawn"), PARAMS)
    assert [table.name for table in task.tables] == ["t0", "t1", "t2"]
    assert (task.world_size, task.local_world_size) == (2, None)
    needs = [dense_memory_bytes(name, mode, task, PARAMS) for name in PARAMS.models for mode in PARAMS.dense]
    assert task.memory_limits == (2**29 - max(needs),) * 2
    assert not task.pipelines_input_dist
    assert len(batches) == 3
    assert [len(ids.indices) for ids in batches[0].ids] == [2 * BATCH_SIZE] * 3
    assert not np.array_equal(batches[0].ids[0].indices, batches[1].ids[0].indices)


def test_tables_are_profiled_on_the_samples_of_a_criteo_file(tmp_path):
    path = tmp_path / "log.txt"
    write_criteo(path, 4 * BATCH_SIZE, seed=1)
    pipelined = DHEN.model_copy(update={"trainer": "pipelined"})
    task, batches = state_problem(tasks(), params(criteo_file=str(path)), pipelined)
    assert task.pipelines_input_dist
    read = list(read_criteo(path, BATCH_SIZE))[:3]
    present = [np.mean([batch.categories[:, at] != MISSING for batch in read]) for at in range(26)]
    assert [table.pooling_factor for table in task.tables] == pytest.approx(present)
    unique = [np.mean([len(np.unique(batch.ids[at].indices)) for batch in batches]) for at in range(26)]
    assert [table.unique_rows for table in task.tables] == pytest.approx(unique)
    np.testing.assert_array_equal(batches[2].dense, read[2].integers)
    np.testing.assert_array_equal(batches[2].labels, read[2].labels)
    for table, ids in zip(task.tables, batches[0].ids, strict=True):
        assert ids.indices.max() < table.num_embeddings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task_id": "unknown"}, ["'unknown'", "drawn, pooling, num_features, is_weighted, dotted"]),
        *[
            ({"task_id": name}, [f"table '{name}'", "one feature and unweighted ids", "measure_steps"])
            for name in ("pooling", "num_features", "is_weighted")
        ],
        ({"task_id": "drawn", "batch_size": 64}, ["batches of 32", "64"]),
        ({"task_id": "dotted"}, ["'user.id'", "rename"]),
        ({"memory_gib": 1e-5}, ["memory_gib 1e-05", "dense network of dhen", "raise memory_gib"]),
        ({"tables": "data/01_raw/nowhere.csv"}, ["nowhere.csv"]),
        ({"task_id": "drawn", "criteo_file": "log.txt"}, ["log.txt", "26", "3 are given"]),
        ({"criteo_file": "nowhere.txt"}, ["nowhere.txt", "no such file"]),
    ],
)
def test_inputs_that_cannot_be_trained_are_refused(changes, words):
    with pytest.raises(NeuroShardError) as caught:
        state_problem(tasks(), params(**changes), DHEN)
    for word in words:
        assert word in str(caught.value)


def test_a_short_criteo_file_is_refused(tmp_path):
    write_criteo(tmp_path / "log.txt", 3 * BATCH_SIZE - 1, seed=1)
    with pytest.raises(NeuroShardError, match=r"log\.txt: holds 2 whole batches of 32 lines, not num_batches 3"):
        state_problem(tasks(), params(criteo_file=str(tmp_path / "log.txt")), DHEN)


def test_a_batch_that_the_ranks_cannot_share_equally_is_refused():
    with pytest.raises(ValueError, match="batch_size 32 must be a multiple of world_size 3"):
        params(world_size=3)
    with pytest.raises(ValueError, match="world_size 2 must be a multiple of local_world_size"):
        params(local_world_size=3)
