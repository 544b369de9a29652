"""Table files of every format are read; malformed ones are refused with one clear message."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables.bad_table_files import BAD_CSV, BAD_JSON, GOOD_RECORD, GOOD_ROW, HEAD, ONCE, PROFILE_HEAD, csv

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.frames import tables_to_frame
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.table_file import read_tables


def refusal(path):
    with pytest.raises(TableFileError) as caught:
        read_tables(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize("case", BAD_CSV)
def test_malformed_csv_is_refused(tmp_path, case):
    content, parts = BAD_CSV[case]
    path = tmp_path / "tables.csv"
    path.write_text(content)
    message = refusal(path)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize("case", BAD_JSON)
def test_malformed_json_is_refused(tmp_path, case):
    content, parts = BAD_JSON[case]
    path = tmp_path / "tables.json"
    path.write_text(content)
    message = refusal(path)
    assert [part for part in parts if part not in message] == [], message


def test_missing_file_is_refused(tmp_path):
    assert "no such file; check the path" in refusal(tmp_path / "tables.csv")


def test_directory_is_refused(tmp_path):
    folder = tmp_path / "tables.csv"
    folder.mkdir()
    assert "is a directory" in refusal(folder)


@pytest.mark.parametrize("name", ["tables.xlsx", "tables", "tables.csv.bak"])
def test_wrong_suffix_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text(csv(HEAD, GOOD_ROW))
    assert "is unknown; save the tables as .csv, .parquet, .json" in refusal(path)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
@pytest.mark.parametrize(
    "content", [bytes(range(256)), b"\x00" * 100, b"PAR1 but no more", "tablé\n".encode("latin-1")]
)
def test_binary_content_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"tables{suffix}"
    path.write_bytes(content)
    refusal(path)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"embedding_dim": [8, 9]}, ["row 2", "embedding_dim 9", "pad the table to 12"]),
        ({"pooling_factor": [1.0, float("nan")]}, ["row 2", "'pooling_factor'", "is empty"]),
        ({"num_embeddings": ["10", "ten"]}, ["row 2", "'num_embeddings'", "'ten'"]),
        ({"table": ["a", "a"]}, ["row 2", "already occurs in row 1"]),
        ({"table": ["a", None]}, ["row 2", "'table'", "is empty"]),
        ({"rows": [1, 2]}, ["unknown column 'rows'"]),
    ],
)
def test_malformed_parquet_is_refused(tmp_path, change, parts):
    good = {"table": ["a", "b"], "num_embeddings": [10, 20], "embedding_dim": [8, 8], "pooling_factor": [1.0, 2.0]}
    path = tmp_path / "tables.parquet"
    pd.DataFrame({**good, **change}).to_parquet(path)
    message = refusal(path)
    assert [part for part in parts if part not in message] == [], message


def test_empty_parquet_is_refused(tmp_path):
    path = tmp_path / "tables.parquet"
    pd.DataFrame({"table": [], "num_embeddings": []}).to_parquet(path)
    assert "holds no tables" in refusal(path)


ONES = (1.0, *(0.0,) * 16)
TABLES = [
    Table("plain", 1000, 16, 2.5),
    Table("profiled", 2000, 128, 1.0, 12.5, (0.25, 0.75, *(0.0,) * 15)),
    Table("half", 3, 4, 0.01, data_type="fp16"),
    Table("sequence", 30, 4, 20.0, pooling="none", module="user tower", num_features=2, is_weighted=True),
]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_tables_that_were_written_are_read_back(tmp_path, suffix):
    path = tmp_path / f"tables{suffix}"
    frame = tables_to_frame(TABLES)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".json":
        frame.to_json(path, orient="records")
    else:
        frame.to_parquet(path)
    assert read_tables(path) == TABLES


def test_spaces_line_ends_and_the_case_of_suffix_and_data_type_do_not_matter(tmp_path):
    path = tmp_path / "TABLES.CSV"
    text = f"\ufeff {HEAD} , data_type\r\n\r\n a , 1e3 , 16.0 , 2.5 , FP16 \r\n12,+5,4,1,\r\n"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_tables(path) == [Table("a", 1000, 16, 2.5, data_type="fp16"), Table("12", 5, 4, 1.0)]


@pytest.mark.parametrize(
    ("name", "count", "largest"),
    [("mlperf_dlrm_v2", 26, 40_000_000), ("criteo_kaggle", 26, 10_131_227), ("hugectr_t510", 510, None)],
)
def test_shipped_files_are_read(request, name, count, largest):
    tables = read_tables(request.config.rootpath / "data" / "01_raw" / f"{name}.csv")
    assert len(tables) == count
    if largest is not None:
        assert max(table.num_embeddings for table in tables) == largest


def test_thousands_of_rows(tmp_path):
    path = tmp_path / "many.csv"
    path.write_text(csv(PROFILE_HEAD, *(f"t{index},1000,16,2.5,10,{ONCE}" for index in range(5000))))
    tables = read_tables(path)
    assert len(tables) == 5000
    assert tables[-1] == Table("t4999", 1000, 16, 2.5, 10.0, ONES)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    column=st.integers(0, 3),
    value=st.one_of(st.text(max_size=12), st.integers().map(str), st.floats().map(str), st.sampled_from("01-+.,;\"'")),
)
def test_any_cell_is_read_or_refused(tmp_path, column, value):
    """Any content of a cell results in tables or in a TableFileError."""
    cells = GOOD_ROW.split(",")
    cells[column] = value
    path = tmp_path / "tables.csv"
    path.write_text(csv(HEAD, ",".join(cells), "last,10,8,1"), encoding="utf-8", errors="surrogatepass")
    try:
        tables = read_tables(path)
    except TableFileError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert tables[-1].name == "last"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD_RECORD, "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(tmp_path, content):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(content))
    try:
        read_tables(path)
    except TableFileError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right


def test_values_become_plain_numbers(tmp_path):
    path = tmp_path / "tables.parquet"
    pd.DataFrame(
        {"table": ["a"], "num_embeddings": np.array([7], dtype=np.uint8), "embedding_dim": [8.0], "pooling_factor": [3]}
    ).to_parquet(path)
    (table,) = read_tables(path)
    assert (type(table.num_embeddings), type(table.embedding_dim), type(table.pooling_factor)) == (int, int, float)
