"""Table files of every format are read; malformed ones are refused with one clear message."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.frames import tables_to_frame
from neuroshard_pipeline.tables.table import REUSE_COLUMNS, Table
from neuroshard_pipeline.tables.table_file import read_tables

HEAD = "table,num_embeddings,embedding_dim,pooling_factor"
PROFILE_HEAD = f"{HEAD},unique_rows,{','.join(REUSE_COLUMNS)}"
ONCE = "1" + ",0" * 16
GOOD_ROW = "a,1000,16,2.5"
GOOD_RECORD = {"table": "a", "num_embeddings": 1000, "embedding_dim": 16, "pooling_factor": 2.5}


def csv(*lines):
    return "\n".join(lines) + "\n"


#: Content of the file, and parts of the message: the position, the column or value, and the remedy.
BAD_CSV = {
    "empty file": ("", ["the file is empty", "one row per table"]),
    "blank lines only": ("\n \n\n", ["the file is empty"]),
    "header only": (csv(HEAD), ["holds no tables", "one row per table"]),
    "missing column": (
        csv("table,num_embeddings,embedding_dim", "a,10,8"),
        ["'pooling_factor' is missing", "required columns are"],
    ),
    "no header": (csv(GOOD_ROW, "b,10,8,1"), ["unknown column 'a'", "required columns are table"]),
    "misspelt column": (
        csv("table,num_embedings,embedding_dim,pooling_factor", GOOD_ROW),
        ["'num_embedings'", "did you mean 'num_embeddings'"],
    ),
    "upper-case column": (
        csv("Table,num_embeddings,embedding_dim,pooling_factor", GOOD_ROW),
        ["'Table'", "did you mean 'table'"],
    ),
    "unknown column": (csv(HEAD + ",colour", GOOD_ROW + ",red"), ["'colour'", "delete it"]),
    "column twice": (csv(HEAD + ",table", GOOD_ROW + ",b"), ["line 1", "'table' occurs 2 times", "keep one"]),
    "column without a name": (csv(HEAD + ",", GOOD_ROW + ",1"), ["line 1", "column 5 has no name"]),
    "semicolons": (
        csv(HEAD.replace(",", ";"), GOOD_ROW.replace(",", ";")),
        ["line 1", "separated by semicolons", "commas"],
    ),
    "tabs": (csv(HEAD.replace(",", "\t"), GOOD_ROW.replace(",", "\t")), ["separated by tabs"]),
    "too few values": (csv(HEAD, GOOD_ROW, "b,10,8"), ["line 3 has 3 values", "4 columns", "one value per column"]),
    "too many values": (csv(HEAD, "a,1,000,16,2.5"), ["line 2 has 5 values", "no commas inside numbers"]),
    "line numbers count blank lines": (csv(HEAD, GOOD_ROW, "", "", "b,x,8,1"), ["line 5", "'num_embeddings'", "'x'"]),
    "line numbers count quoted breaks": (csv(HEAD, '"a\nb",10,8,1', "c,10,8,y"), ["line 4", "'y'"]),
    "open quote": (csv(HEAD, '"a,10,8,1'), ["quotes"]),
    "text for a number": (
        csv(HEAD, "a,many,16,2.5"),
        ["line 2", "'num_embeddings'", "'many' is not a number", "digits only, such as 1000"],
    ),
    "number with separators": (csv(HEAD, 'a,"1,000,000",16,2.5'), ["'1,000,000'", "without separators"]),
    "number with underscores": (csv(HEAD, "a,1_000,16,2.5"), ["'1_000'", "without separators"]),
    "number with unit": (csv(HEAD, "a,40M,16,2.5"), ["'40M' is not a number"]),
    "hexadecimal": (csv(HEAD, "a,0x10,16,2.5"), ["'0x10' is not a number"]),
    "empty cell": (csv(HEAD, "a,,16,2.5"), ["line 2", "'num_embeddings'", "is empty"]),
    "empty name": (csv(HEAD, " ,10,16,2.5"), ["line 2", "'table'", "is empty", "unique name"]),
    "nan": (csv(HEAD, "a,10,16,nan"), ["line 2", "'pooling_factor'", "'nan' is not a finite number"]),
    "infinite": (csv(HEAD, "a,10,16,inf"), ["'inf' is not a finite number"]),
    "overflowing": (csv(HEAD, "a,1e999,16,1"), ["'1e999' is not a finite number"]),
    "zero rows": (csv(HEAD, "a,0,16,2.5"), ["line 2", "'a'", "num_embeddings 0", "between 1 and"]),
    "negative rows": (csv(HEAD, GOOD_ROW, "b,-5,16,2.5"), ["line 3", "num_embeddings -5"]),
    "absurd rows": (csv(HEAD, "a,99999999999999999,16,1"), ["num_embeddings 99999999999999999", "between 1 and"]),
    "fractional rows": (csv(HEAD, "a,10.5,16,2.5"), ["line 2", "'num_embeddings'", "'10.5' is not a whole number"]),
    "fractional dimension": (csv(HEAD, "a,10,16.5,2.5"), ["'embedding_dim'", "'16.5'"]),
    "dimension not a multiple of 4": (csv(HEAD, "a,10,18,2.5"), ["line 2", "embedding_dim 18", "pad the table to 20"]),
    "zero dimension": (csv(HEAD, "a,10,0,2.5"), ["embedding_dim 0"]),
    "absurd dimension": (csv(HEAD, "a,10,65536,2.5"), ["embedding_dim 65536"]),
    "zero pooling factor": (csv(HEAD, "a,10,16,0"), ["pooling_factor 0.0", "above 0"]),
    "negative pooling factor": (csv(HEAD, "a,10,16,-1"), ["pooling_factor -1.0"]),
    "absurd pooling factor": (csv(HEAD, "a,10,16,1e12"), ["pooling_factor 1000000000000.0", "at most"]),
    "name twice": (
        csv(HEAD, GOOD_ROW, "b,1,4,1", GOOD_ROW),
        ["line 4", "'a' already occurs in line 2", "unique name"],
    ),
    "unknown data type": (
        csv(HEAD + ",data_type", GOOD_ROW + ",int4"),
        ["line 2", "data_type 'int4'", "use one of fp32"],
    ),
    "unknown pooling": (csv(HEAD + ",pooling", GOOD_ROW + ",max"), ["line 2", "pooling 'max'", "use one of sum, mean"]),
    "features are text": (csv(HEAD + ",num_features", GOOD_ROW + ",two"), ["line 2", "'num_features'", "'two' is not"]),
    "no features": (csv(HEAD + ",num_features", GOOD_ROW + ",0"), ["line 2", "num_features 0", "between 1 and"]),
    "weighted is a word": (
        csv(HEAD + ",is_weighted", GOOD_ROW + ",yes"),
        ["line 2", "'yes' is neither true nor false"],
    ),
    "part of a profile": (
        csv(HEAD + ",unique_rows,reuse_00", GOOD_ROW + ",5,1"),
        ["'reuse_01' is missing", "or none of these columns"],
    ),
    "profile without unique rows": (
        csv(f"{HEAD},{','.join(REUSE_COLUMNS)}", f"{GOOD_ROW},{ONCE}"),
        ["'unique_rows' is missing"],
    ),
    "hole in a profile": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,1,," + "0," * 14 + "0"),
        ["line 2", "'reuse_01'", "is empty while"],
    ),
    "shares above one": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,50,50" + ",0" * 15),
        ["line 2", "reuse_00 50.0 is not a share"],
    ),
    "negative share": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,1,-0.5,0.5" + ",0" * 14),
        ["line 2", "reuse_01 -0.5 is not a share"],
    ),
    "shares do not sum to one": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,0.5" + ",0" * 16),
        ["line 2", "sum to 0.5000", "divide them"],
    ),
    "share is text": (csv(PROFILE_HEAD, f"{GOOD_ROW},5,all" + ",0" * 16), ["'reuse_00'", "'all' is not a number"]),
    "more unique rows than rows": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},1001,{ONCE}"),
        ["unique_rows 1001.0", "at most num_embeddings 1000"],
    ),
    "no unique rows": (csv(PROFILE_HEAD, f"{GOOD_ROW},0,{ONCE}"), ["unique_rows 0.0", "above 0"]),
}

BAD_JSON = {
    "empty": ("", ["the file is empty"]),
    "not JSON": ("[{]", ["line 1, column 3", "not valid JSON"]),
    "cut off": ('[{"table": "a",\n "num', ["line 2", "not valid JSON"]),
    "an object": (json.dumps(GOOD_RECORD), ["a JSON object, not a list", "list of records"]),
    "a number": ("3", ["a JSON number, not a list"]),
    "a list of numbers": ("[1, 2]", ["record 1 is a JSON number, not an object"]),
    "a list of lists": (json.dumps([GOOD_RECORD, ["b", 1]]), ["record 2 is a JSON list"]),
    "an empty list": ("[]", ["holds no tables"]),
    "nested too deeply": ("[" * 100_000, ["not usable JSON"]),
    "a string for a number": (
        json.dumps([{**GOOD_RECORD, "embedding_dim": "wide"}]),
        ["record 1", "'embedding_dim'", "'wide'"],
    ),
    "a list for a number": (json.dumps([{**GOOD_RECORD, "embedding_dim": [8]}]), ["record 1", "[8] is not a number"]),
    "true for a number": (json.dumps([{**GOOD_RECORD, "num_embeddings": True}]), ["record 1", "True is not a number"]),
    "null for a number": (json.dumps([{**GOOD_RECORD, "num_embeddings": None}]), ["'num_embeddings'", "is empty"]),
    "NaN": (json.dumps([{**GOOD_RECORD, "pooling_factor": float("nan")}]), ["nan is not a finite number"]),
    "too large": (json.dumps([{**GOOD_RECORD, "pooling_factor": 10**400}]), ["... is not a finite number"]),
    "too large for a float": (
        json.dumps([{**GOOD_RECORD, "num_embeddings": 10**401}]),
        ["record 1", "must be between 1 and 1099511627776"],
    ),
    "a fraction": (json.dumps([{**GOOD_RECORD, "num_embeddings": 0.5}]), ["0.5 is not a whole number"]),
    "a name that is a list": (json.dumps([{**GOOD_RECORD, "table": ["a"]}]), ["'table'", "is not a string"]),
    "a data type that is a number": (
        json.dumps([{**GOOD_RECORD, "data_type": 32}]),
        ["record 1", "data_type '32' is unknown"],
    ),
    "a record without a value": (
        json.dumps([GOOD_RECORD, {"table": "b"}]),
        ["record 2", "'num_embeddings'", "is empty"],
    ),
    "an unknown key": (json.dumps([GOOD_RECORD, {**GOOD_RECORD, "table": "b", "dim": 8}]), ["'dim' in record 2"]),
    "a name twice": (json.dumps([GOOD_RECORD, GOOD_RECORD]), ["record 2", "already occurs in record 1"]),
}


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
    assert "is not one of .csv, .parquet, .json" in refusal(path)


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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
