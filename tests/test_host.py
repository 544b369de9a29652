"""The memory that is left under real limits of a process, and under cgroups whose files the tests write."""

import subprocess
import sys

import psutil
import pytest
from conftest import ROOT

from neuroshard_pipeline.host import available_memory_bytes, left_in_cgroups

V2 = {"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 500\nfile 400"}
V1 = {"memory.limit_in_bytes": "2000", "memory.usage_in_bytes": "1500", "memory.stat": "cache 1\ntotal_cache 300"}


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("line", "folder", "files", "left"),
    [
        ("0::/job", "job", V2, [500]),
        ("0::/job/step", "job", V2, [500]),
        ("0::/job", "job", V2 | {"memory.max": "max"}, []),
        ("4:memory:/job", "memory/job", V1, [800]),
        ("3:cpuset:/job", "job", V2, []),
        ("0::/", "job", V2, []),
    ],
    ids=["own", "parent", "no limit", "version 1", "other controller", "no files"],
)
def test_a_cgroup_leaves_its_limit_minus_use_plus_page_cache(tmp_path, line, folder, files, left):
    (tmp_path / "own").write_text(line + "\n")
    write(tmp_path / "root" / folder, files)
    assert list(left_in_cgroups(tmp_path / "own", tmp_path / "root")) == left


def test_no_more_is_left_than_the_machine_has():
    assert 0 < available_memory_bytes() <= psutil.virtual_memory().total


def test_a_limit_of_the_address_space_counts():
    code = """
import resource
from neuroshard_pipeline.host import available_memory_bytes
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
assert 0 < available_memory_bytes() < 4 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20))
assert available_memory_bytes() == 0
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
