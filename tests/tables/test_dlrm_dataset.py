"""The reader of Meta's files reads small files of their format and refuses files with other content."""

import gzip

import numpy as np
import pytest
import torch

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.dlrm_dataset import read_dlrm_dataset
from neuroshard_pipeline.tables.frames import POOL_COLUMNS, tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids

NAME = "fbgemm_t856_bs65536_7.pt"


def content(lengths, indices):
    """The three tensors as torch.save gets them."""
    lengths = torch.tensor(lengths)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.reshape(-1).cumsum(0)])
    return torch.tensor(indices), offsets, lengths


#: Two samples. The ids of table 0 are 5, 5 and 2; table 1 has no ids; those of table 2 are 9, 9, 9 and 9.
SMALL = content([[2, 1], [0, 0], [0, 4]], [5, 5, 2, 9, 9, 9, 9])


def write(folder, value, name=NAME, **options):
    path = folder / name
    if path.suffix == ".gz":
        with gzip.open(path, "wb") as file:
            torch.save(value, file, **options)
    else:
        torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("name", [NAME, NAME + ".gz"])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_small_file_by_hand(tmp_path, name, options):
    pool = read_dlrm_dataset(write(tmp_path, SMALL, name, **options))
    assert pool.columns.tolist() == list(POOL_COLUMNS)
    assert pool["table"].tolist() == ["table_000", "table_002"]
    assert pool["num_embeddings"].tolist() == [6, 10]
    assert pool["pooling_factor"].tolist() == [1.5, 2.0]
    assert pool["unique_rows"].tolist() == [2.0, 1.0]
    assert pool["reuse_00"].tolist() == [0.5, 0.0]
    assert pool["reuse_01"].tolist() == [0.5, 0.0]
    assert pool["reuse_02"].tolist() == [0.0, 1.0]


def test_a_smaller_batch_takes_the_first_samples(tmp_path):
    pool = read_dlrm_dataset(write(tmp_path, SMALL), batch_size=1)
    assert pool["table"].tolist() == ["table_000"]
    assert pool[["num_embeddings", "pooling_factor", "unique_rows"]].to_numpy().tolist() == [[6, 2.0, 1.0]]


def test_a_batch_without_ids_is_refused(tmp_path):
    with pytest.raises(TableFileError, match="first 1 samples look up none of 1 tables; use a larger batch_size"):
        read_dlrm_dataset(write(tmp_path, content([[0, 2]], [1, 1])), batch_size=1)


def test_ids_drawn_from_a_pool_have_its_profiles(tmp_path):
    """The generator, the drawn ids and the reader agree on the profiles."""
    generated = generate_pool(PoolParams(num_tables=12, batch_size=128, row_scale=512.0, seed=0))
    drawn = [draw_ids(table, 128, seed=4) for table in tables_from_frame(generated)]
    lengths = [np.diff(ids.offsets).tolist() for ids in drawn]
    path = write(tmp_path, content(lengths, np.concatenate([ids.indices for ids in drawn]).tolist()))
    pool = read_dlrm_dataset(path)
    compared = [column for column in POOL_COLUMNS if column not in ("table", "num_embeddings")]
    np.testing.assert_allclose(pool[compared], generated[compared], atol=1e-9)
    assert (pool["num_embeddings"] <= generated["num_embeddings"]).all()
    first_half = read_dlrm_dataset(path, batch_size=64)
    ids = drawn[5].indices[: drawn[5].offsets[64]]
    row = first_half[first_half["table"] == "table_005"].iloc[0]
    assert row["unique_rows"] == len(np.unique(ids)) <= pool["unique_rows"][5]
    assert row["pooling_factor"] == len(ids) / 64
    assert row["num_embeddings"] == pool["num_embeddings"][5]


INDICES, OFFSETS, LENGTHS = SMALL
WITHOUT_IDS = content([[0, 0]], [0])


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ((INDICES, OFFSETS), "not a tuple"),
        ({"indices": INDICES}, "holds a dict"),
        ((INDICES, OFFSETS, [1, 2]), "lengths are not a tensor"),
        ((INDICES.float(), OFFSETS, LENGTHS), "indices are not a tensor of whole numbers"),
        ((INDICES, OFFSETS, LENGTHS.reshape(-1)), "lengths have shape"),
        ((INDICES, OFFSETS, LENGTHS[:0]), "no table or no sample"),
        ((INDICES, OFFSETS[:-1], LENGTHS), "6 offsets"),
        ((INDICES, OFFSETS.flip(0), LENGTHS), "running sum"),
        ((INDICES, OFFSETS + 1, LENGTHS), "running sum"),
        ((INDICES[:-1], OFFSETS, LENGTHS), "6 indices"),
        ((INDICES - 5, OFFSETS, LENGTHS), "is negative"),
        ((WITHOUT_IDS[0][:0], *WITHOUT_IDS[1:]), "none of 1 tables; use another file"),
    ],
)
def test_other_content_is_refused(tmp_path, value, named):
    with pytest.raises(TableFileError, match=named) as caught:
        read_dlrm_dataset(write(tmp_path, value))
    assert NAME in str(caught.value)


@pytest.mark.parametrize("batch_size", [0, 3])
def test_impossible_batch_sizes_are_refused(tmp_path, batch_size):
    with pytest.raises(TableFileError, match=f"batch_size {batch_size} must be between 1 and the 2"):
        read_dlrm_dataset(write(tmp_path, SMALL), batch_size=batch_size)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(TableFileError, match="no such file"):
        read_dlrm_dataset(tmp_path / NAME)


@pytest.mark.parametrize("data", [b"", b"not a tensor", b"PK\x03\x04 cut off"])
def test_broken_files_are_refused(tmp_path, data):
    path = tmp_path / NAME
    path.write_bytes(data)
    with pytest.raises(TableFileError, match="not a tuple of tensors"):
        read_dlrm_dataset(path)


def test_broken_gzip_is_refused(tmp_path):
    path = write(tmp_path, SMALL, NAME + ".gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TableFileError, match="not a complete gzip file"):
        read_dlrm_dataset(path)
    path.write_bytes(b"plain")
    with pytest.raises(TableFileError, match="not a complete gzip file"):
        read_dlrm_dataset(path)


class Evil:
    def __reduce__(self):
        return print, ("code from a file was run",)


def test_code_in_a_file_is_never_run(tmp_path, capsys):
    with pytest.raises(TableFileError, match="not a tuple of tensors"):
        read_dlrm_dataset(write(tmp_path, Evil()))
    assert "code from a file" not in capsys.readouterr().out
