from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.workers import Item, LocalTeam, Pool, TeamFailedError
from workers.item_functions import calculator, unfit


@pytest.fixture
def team():
    team = LocalTeam(2, calculator, lambda: (10,))
    yield team
    team.kill()


def test_answers_come_in_the_order_of_ranks_from_lasting_processes(team):
    first, second = team.ask("job", 30.0), team.ask("job", 30.0)
    assert [value for value, _ in first] == [10, 11]
    assert first == second


@pytest.mark.parametrize(
    ("job", "timeout_s", "message"),
    [("die", 30.0, "worker 1 died"), ("hang", 0.5, "worker 0 did not answer"), ("raise", 30.0, "one over nothing")],
)
def test_a_failure_replaces_the_whole_team(team, job, timeout_s, message):
    before = team.ask("job", 30.0)
    with pytest.raises(TeamFailedError, match=message):
        team.ask(job, timeout_s)
    assert not any(psutil.pid_exists(pid) for _, pid in before)
    after = team.ask("job", 30.0)
    assert [value for value, _ in after] == [10, 11]
    assert {pid for _, pid in after}.isdisjoint(pid for _, pid in before)


class OfMain:
    """Pickled by reference to `__main__`, as a class of a user's script is."""


@pytest.fixture
def class_of_main(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(OfMain, "__module__", "__main__")
    monkeypatch.setattr(main, "OfMain", OfMain, raising=False)
    return OfMain


def test_teams_that_start_in_several_threads_leave_the_main_module_as_it_is(class_of_main):
    main = sys.modules["__main__"]
    stop = threading.Event()

    def pickle_until_stopped():
        while not stop.is_set():
            assert pickle.loads(pickle.dumps(class_of_main)) is class_of_main

    def start_and_end(_):
        team = LocalTeam(2, calculator, lambda: (10,))
        answers = [value for value, _ in team.ask("job", 60.0)]
        team.kill()
        return answers

    with ThreadPoolExecutor(5) as threads:
        pickling = threads.submit(pickle_until_stopped)
        answers = list(threads.map(start_and_end, range(5)))
        stop.set()
        pickling.result()
    assert answers == [[10, 11]] * 5
    assert sys.modules["__main__"] is main


@pytest.mark.slow
def test_a_script_without_a_guard_may_use_forked_and_spawned_workers_and_ends_without_warnings(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from neuroshard_pipeline.workers import LocalTeam, WorkerParams, map_items\n"
        "from workers.item_functions import calculator, with_progress_bar\n"
        "print('script runs')\n"
        "print(LocalTeam(1, calculator, lambda: (10,)).ask('job', 60.0)[0][0])\n"
        "params = WorkerParams(engine='local', address=None, workers=1, timeout_s=60)\n"
        "print([outcome.value for outcome in map_items(with_progress_bar, [1, 2], params)])\n"
        "print([value for value, _ in LocalTeam(1, calculator, lambda: (10,), spawn=True).ask('job', 60.0)])\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, script], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n") == ["script runs", "10", "[1, 2]", "[10]", ""], done.stderr
    assert done.stderr == ""


def test_a_setup_that_fails_is_not_tried_again():
    starts = []

    def arguments():
        starts.append("start")
        return ()

    with (
        Pool(lambda: {0: [LocalTeam(1, unfit, arguments)]}, 30.0) as pool,
        pytest.raises(MeasurementError, match="no such device"),
    ):
        list(pool.run([Item("job")]))
    assert len(starts) == 1


def test_a_closed_team_starts_nothing(team):
    team.close()
    with pytest.raises(TeamFailedError, match="closed"):
        team.ask("job", 30.0)
    assert not team._members
