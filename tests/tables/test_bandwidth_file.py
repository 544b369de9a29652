import numpy as np
import pytest

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths


def written(tmp_path, text):
    path = tmp_path / "links.csv"
    path.write_text(text)
    return path


def test_rows_send_and_columns_receive(tmp_path):
    path = written(tmp_path, "0, 300, 48.5\n300,,48.5\n\n40,40,x\n")
    expected = [[np.inf, 300, 48.5], [300, np.inf, 48.5], [40, 40, np.inf]]
    np.testing.assert_array_equal(read_bandwidths(path, 3), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,0\n", r"links\.csv: 2 lines of bandwidths, but world_size is 3; write one line per sending rank"),
        ("0,1,1\n1,0\n1,1,0\n", r"line 2 has 2 values, but world_size is 3; write one line per sending rank"),
        ("0,1,1\n1,0,fast\n1,1,0\n", r"line 2, column 3: 'fast' is not a bandwidth; give GB/s above 0"),
        ("0,1,1\n\n0,0,1\n1,1,0\n", r"line 3, column 1: '0' is not a bandwidth"),
        ("0,inf,1\n1,0,1\n1,1,0\n", r"line 1, column 2: 'inf' is not a bandwidth"),
        ("", r"0 lines of bandwidths"),
    ],
)
def test_a_bad_file_is_named_with_line_value_and_remedy(tmp_path, text, message):
    with pytest.raises(TableFileError, match=message):
        read_bandwidths(written(tmp_path, text), 3)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(TableFileError, match=r"none\.csv: cannot be read .*check path"):
        read_bandwidths(tmp_path / "none.csv", 3)
    path = tmp_path / "links.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableFileError, match="byte 0 is not UTF-8"):
        read_bandwidths(path, 3)
