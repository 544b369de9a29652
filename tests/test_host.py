"""How much memory the limits of a process and of its cgroups leave, and how much of the cores other programs use."""

import subprocess
import sys
import time

import psutil
import pytest
import warm

from neuroshard_pipeline.host import OtherPrograms, available_memory_bytes, left_in_cgroups, usable_cores

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


def test_a_limit_of_the_address_space_counts(tmp_path):
    # No limit below what the process uses already: every request for memory might fail under it.
    (tmp_path / "limited.py").write_text("""
import psutil, resource
from neuroshard_pipeline.host import available_memory_bytes
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
assert 0 < available_memory_bytes() <= 2**28
""")
    done = warm.run(tmp_path / "limited.py")
    assert done.returncode == 0, done.stderr


SPIN = "import time\nwhile time.process_time() < 0.4: pass"
#: Rounding of the system's clocks, and the processor time of the test itself, as a share of all cores.
ROUNDING = 0.06


def test_processes_that_this_one_has_started_are_no_other_programs():
    others, start, cores = OtherPrograms(), time.monotonic(), len(usable_cores())
    children = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(cores)]
    assert [child.wait() for child in children] == [0] * cores
    assert others.share() <= 1 - 0.4 / (time.monotonic() - start) + ROUNDING


def test_a_process_of_somebody_else_is_another_program():
    others, start = OtherPrograms(), time.monotonic()
    # The shell ends at once, so that its child is no descendant of this process any more.
    command = f"'{sys.executable}' -S -c 'while True: pass' > /dev/null 2>&1 & echo $!"
    orphan = psutil.Process(int(subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout))
    try:
        while (used_s := orphan.cpu_times().user) < 0.3:
            time.sleep(0.02)
        share, seconds = others.share(), time.monotonic() - start
    finally:
        orphan.kill()
    assert used_s / seconds / len(usable_cores()) - ROUNDING <= share <= 1


def test_the_share_counts_from_the_last_call():
    others = OtherPrograms()
    others._used_s, others._total_s = others._used_s - 1e6, others._total_s - 1e6
    assert others.share() > 0.9  # as if other programs had used 1e6 seconds
    time.sleep(0.1)
    before, after = others._total_s, (others.share(), others._total_s)[1]
    assert 0 < after - before < 1e3
