import json

import pytest
import yaml

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

CONTENT = {
    "min_width": 8,
    "max_shards": 4,
    "sharding_types": ["column_wise", "row_wise"],
    "together": [["a", "b"]],
    "tables": {
        "c": {"ranks": [0, 1], "max_shards": 2},
        "d": {"forbidden_ranks": [2], "min_width": 16, "split": False, "sharding_types": ["table_wise"]},
    },
}


@pytest.mark.parametrize(("suffix", "write"), [("yml", yaml.safe_dump), ("yaml", json.dumps), ("json", json.dumps)])
def test_yaml_and_json_are_read_alike(tmp_path, suffix, write):
    path = tmp_path / f"constraints.{suffix}"
    path.write_text(write(CONTENT))
    single = [
        TableConstraint("c", ranks=[0, 1], max_shards=2),
        TableConstraint("d", forbidden_ranks=[2], min_width=16, split=False, sharding_types=["table_wise"]),
    ]
    assert read_constraints(path) == Constraints(single, [["a", "b"]], 8, 4, ["column_wise", "row_wise"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tables: {a: {rank: [0]}}", r"key tables.a.rank does not exist; did you mean 'ranks'\?"),
        ("togather: [[a, b]]", r"key togather does not exist; did you mean 'together'\?"),
        ("zzz: 1", "key zzz does not exist; use one of tables, together, min_width, max_shards, sharding_types"),
        ("tables: {a: {ranks: [zero]}}", r"tables.a.ranks.0: .* valid integer; the file has 'zero'"),
        ("tables: {a: {ranks: []}}", "on table 'a': ranks is empty"),
        ("tables: {a: {sharding_types: row_wise}}", "tables.a.sharding_types: .* valid list; the file has 'row_wise'"),
        ("sharding_types: [rowwise]", r"'rowwise' is unknown.*did you mean 'row_wise'\?"),
        ("together: [[a]]", "needs at least two"),
        ("- a", "must hold keys such as 'tables'"),
        ("", "must hold keys"),
        ("tables: {a: {split: false}, a: {max_shards: 3}}", "key 'a' occurs 2 times"),
        ("? [a, b]\n: 1", "not readable YAML or JSON"),
        ("tables: [", "not readable YAML or JSON"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_key(tmp_path, content, message):
    path = tmp_path / "bad.yml"
    path.write_text(content)
    with pytest.raises(TableFileError, match=message) as caught:
        read_constraints(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tables: {clicks: {ranks: [9]}}", r"'clicks' names rank 9, outside 0\.\.1"),
        ("tables: {click: {ranks: [0]}}", r"the table 'click', .*; did you mean 'clicks'\?"),
        (
            "tables: {clicks: {ranks: [0]}, users: {ranks: [1]}}\ntogether: [[clicks, users]]",
            "no rank is allowed for all",
        ),
        (
            "tables: {clicks: {forbidden_ranks: [1], sharding_types: [row_wise, data_parallel], split: false}}",
            "row_wise: it splits the rows, but split is false; data_parallel: it needs every rank.*; allow column_wise",
        ),
    ],
)
def test_a_task_that_cannot_meet_the_constraints_of_a_file_names_the_file(tmp_path, content, message):
    path = tmp_path / "rules.yml"
    path.write_text(content)
    tables = [Table("clicks", 100, 16, 1.0), Table("users", 100, 16, 1.0)]
    with pytest.raises(TaskError, match=rf"mine: .*rules\.yml: .*{message}"):
        ShardingTask(tables, 2, 32, 2**20, task_id="mine", constraints=read_constraints(path))


def test_json_may_be_indented_by_tabs_but_not_repeat_keys(tmp_path):
    path = tmp_path / "constraints.json"
    path.write_text('{\n\t"min_width": 8\n}')
    assert read_constraints(path).min_width == 8
    path.write_text('{"min_width": 8, "min_width": 16}')
    with pytest.raises(TableFileError, match="key 'min_width' occurs 2 times"):
        read_constraints(path)


def test_a_missing_file_and_an_unknown_suffix_are_refused(tmp_path):
    with pytest.raises(TableFileError, match="cannot be read"):
        read_constraints(tmp_path / "none.yml")
    with pytest.raises(TableFileError, match=r"suffix '\.txt'"):
        read_constraints(tmp_path / "none.txt")
