from __future__ import annotations

import psutil
import pytest

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.workers import LocalTeam, TeamFailedError
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


def test_spawned_processes_answer_alike():
    spawned = LocalTeam(2, calculator, lambda: (10,), spawn=True)
    answers = spawned.ask("job", 60.0)
    spawned.kill()
    assert [value for value, _ in answers] == [10, 11]


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


def test_a_setup_that_fails_is_not_tried_again():
    with pytest.raises(MeasurementError, match="no such device"):
        LocalTeam(1, unfit, tuple).ask("job", 30.0)


def test_a_closed_team_starts_nothing(team):
    team.close()
    with pytest.raises(TeamFailedError, match="closed"):
        team.ask("job", 30.0)
    assert not team._members
