"""Files of drawn ids."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import id_files
from neuroshard_pipeline.measurement.compute_bench import FbgemmCpuBench
from neuroshard_pipeline.measurement.id_files import Batch, IdFiles, batches_of
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

SEED = 7
TABLES = [Table("wide", 500, 16, 6.0), Table("rare", 40_000, 8, 0.3), Table("tiny", 3, 4, 1.0)]


def fail(*_):
    raise AssertionError("drawn again")


def written(files):
    """When each file was written."""
    return {path: path.stat().st_mtime_ns for path in files.folder.iterdir()}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_file_holds_what_was_drawn_and_is_read_instead_of_drawing(tmp_path, monkeypatch, table):
    expected = draw_ids(with_profile(table, 64), 64, SEED)
    files, batch = IdFiles(tmp_path / "ids", SEED), Batch(table, 64)
    first = files(batch)
    monkeypatch.setattr(id_files, "draw_ids", fail)
    for indices, offsets in (first, files(batch)):
        np.testing.assert_array_equal(indices, expected.indices)
        np.testing.assert_array_equal(offsets, expected.offsets)
    (path,) = (tmp_path / "ids").iterdir()
    assert path.stat().st_size == batch.num_bytes == 4 * (batch.num_ids + 65)


def test_whatever_changes_the_ids_has_its_own_file_and_a_shard_has_that_of_its_table(tmp_path):
    table = with_profile(TABLES[0], 64)
    others = [
        replace(table, name="other"),
        replace(table, num_embeddings=501),
        replace(table, pooling_factor=6.5),
        replace(table, unique_rows=table.unique_rows - 1),
        replace(table, reuse=(1.0, *(0.0 for _ in table.reuse[1:]))),
    ]
    files = IdFiles(tmp_path, SEED)
    for batch in [*(Batch(other, 64) for other in others), Batch(table, 64), Batch(table, 65)]:
        files(batch)
    IdFiles(tmp_path, SEED + 1)(Batch(table, 64))
    assert len(list(tmp_path.iterdir())) == len(others) + 3
    sample = ComputeSample("columns", 64, (Shard(table, 0, 4), Shard(table, 4, 12), whole(others[0])))
    assert [batch.table.name for batch in batches_of([sample, sample])] == ["wide", "other"]
    assert not files.missing(batches_of([sample]))


def test_large_tables_keep_64_bit_numbers():
    assert Batch(Table("huge", 2**31, 4, 1.0), 8).dtype == np.int64
    assert Batch(Table("large", 2**31 - 1, 4, 1.0), 8).dtype == np.int32


def test_several_processes_draw_what_is_missing_and_a_second_run_draws_nothing(tmp_path, monkeypatch):
    batches = [Batch(table, size) for table in TABLES for size in (16, 32)]
    files = IdFiles(tmp_path / "new" / "ids", SEED)
    files(batches[0])
    monkeypatch.setattr(id_files, "draw_ids", fail)  # in this process only: the workers are to draw
    first = written(files)
    files.draw_missing(batches, workers=2)
    assert not files.missing(batches)
    assert not list(tmp_path.rglob("*.part"))
    second = written(files)
    assert first.items() <= second.items()
    files.draw_missing(batches, workers=2)
    assert written(files) == second
    for batch in batches:
        expected = draw_ids(with_profile(batch.table, batch.batch_size), batch.batch_size, SEED)
        np.testing.assert_array_equal(files(batch)[0], expected.indices)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_drawn(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(id_files.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    batch = Batch(TABLES[0], 64)
    with pytest.raises(MeasurementError, match=f"need {batch.num_bytes} bytes.*has 1 left.*choose a folder"):
        IdFiles(tmp_path / "ids", SEED).draw_missing([batch], workers=1)
    assert not list(tmp_path.iterdir())


def test_a_bench_looks_up_the_same_ids_with_files_and_without(compute_params, tmp_path):
    sample = ComputeSample("all", 33, tuple(whole(table) for table in TABLES))
    without = FbgemmCpuBench(compute_params(), SEED)._inputs(sample)
    for _ in range(2):  # the second bench reads the files of the first
        bench = FbgemmCpuBench(compute_params(ids_folder=str(tmp_path / "ids")), SEED)
        for drawn, expected in zip(bench._inputs(sample), without, strict=True):
            assert drawn.dtype == torch.int64
            assert torch.equal(drawn, expected)
    assert len(list((tmp_path / "ids").iterdir())) == len(TABLES)
