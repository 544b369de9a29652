"""Two runs never write to one data folder at the same time, unless one of them needs no lock."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import warm
from conftest import ROOT, bootstrap, run_pipeline
from kedro.framework.session import KedroSession

from neuroshard_pipeline.pipelines.preflight import PreflightError
from neuroshard_pipeline.run_lock import LOCK_FILE, DataFolderInUseError, RunLock

_HOLD = """
import sys
import time
from contextlib import closing
from pathlib import Path
from neuroshard_pipeline.run_lock import RunLock
with closing(RunLock(Path(sys.argv[1]))):
    print("held", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
"""


@contextmanager
def held_by_another_process(folder: Path) -> Iterator[BaseProcess]:
    """A process that holds the lock of a folder until the block ends."""
    with tempfile.TemporaryDirectory() as own:
        script, end, told = (Path(own, name) for name in ("hold.py", "end", "stdout"))
        script.write_text(_HOLD)
        holder = warm.start([script, folder, end], Path(own))
        while told.read_text() != "held\n":
            assert holder.is_alive()
            time.sleep(0.01)
        try:
            yield holder
        finally:
            end.touch()
            holder.join()


def test_a_second_run_ends_at_once_and_names_the_first(tmp_path):
    command = ["-m", "kedro", "run", "--env", "test", "--pipeline", "augment", "--params", f"data_root={tmp_path}"]
    with held_by_another_process(tmp_path) as holder:
        second = warm.run(*command)
    assert second.returncode == 1
    message = second.stderr.splitlines()[-1]
    assert message.startswith(f"Error: the data folder {tmp_path} is in use by another run: process {holder.pid} on ")
    assert f"`hold.py {tmp_path} " in message
    assert "Wait until that run has ended" in message
    assert "data_root=" in message
    assert list(tmp_path.iterdir()) == []


_COUNT = """
import sys
import time
from contextlib import closing
from pathlib import Path
from neuroshard_pipeline.run_lock import DataFolderInUseError, RunLock
folder, times = Path(sys.argv[1]), int(sys.argv[2])
while times:
    try:
        with closing(RunLock(folder)):
            count = int((folder / "count").read_text())
            time.sleep(0.002)
            (folder / "count").write_text(str(count + 1))
            times -= 1
    except DataFolderInUseError:
        pass
"""


def test_processes_that_compete_for_a_folder_never_hold_it_together(tmp_path):
    (tmp_path / "count").write_text("0")
    (tmp_path / "count.py").write_text(_COUNT)
    for process in [warm.start([tmp_path / "count.py", tmp_path, "40"], tmp_path) for _ in range(3)]:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "count").read_text() == "120"
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_killed_run_leaves_no_lock_behind(tmp_path):
    with held_by_another_process(tmp_path) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
        with closing(RunLock(tmp_path)):
            assert str(os.getpid()) in (tmp_path / LOCK_FILE).read_text()


def test_a_lock_holds_before_its_holder_has_written_the_file(tmp_path):
    lock = RunLock(tmp_path)
    (tmp_path / LOCK_FILE).write_text("")
    with pytest.raises(DataFolderInUseError, match=r"is in use by another run\. Wait"):
        RunLock(tmp_path)
    lock.close()
    RunLock(tmp_path).close()


def test_a_finished_run_and_a_refused_run_give_the_lock_back(tmp_path):
    run_pipeline(tmp_path, "augment")
    with closing(RunLock(tmp_path)), pytest.raises(DataFolderInUseError):
        run_pipeline(tmp_path, "augment")
    with pytest.raises(PreflightError):
        run_pipeline(tmp_path, "train")
    RunLock(tmp_path).close()


def test_a_failed_run_gives_the_lock_back(tmp_path):
    with pytest.raises(Exception, match="no such file"):
        run_pipeline(tmp_path, "augment", params={"augment": {"pool": {"dlrm_dataset": str(tmp_path / "missing.pt")}}})
    RunLock(tmp_path).close()


def test_the_pipeline_plan_runs_beside_another_run(tmp_path):
    """With the shipped cost models of the H100, because an empty data folder has none."""
    bootstrap()
    task = {"tables": str(ROOT / "data/01_raw/criteo_kaggle.csv"), "sharder": "size_greedy", "rivals": []}
    params = {"data_root": str(tmp_path), "plan": {"task": task}}
    with held_by_another_process(tmp_path), KedroSession.create(ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["plan"])
        assert (tmp_path / LOCK_FILE).exists()
    assert list(tmp_path.rglob("plan.parquet"))
