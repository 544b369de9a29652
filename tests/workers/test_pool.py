"""A pool hands items to teams of workers. The teams of these tests are plain objects without processes."""

from __future__ import annotations

import pytest

from neuroshard_pipeline.errors import ExecutionError
from neuroshard_pipeline.workers import Item, Pool, TeamFailedError
from neuroshard_pipeline.workers.team import TeamLostError

TIMEOUT_S = 30.0


class FakeTeam:
    """Answers with its name and the job; every team fails at the job `deadly`, the team `lost` is lost at `last`."""

    def __init__(self, name):
        self.name = name
        self.asked = []
        self.ended = []

    def ask(self, job, timeout_s):
        assert timeout_s == TIMEOUT_S
        self.asked.append(job)
        if job == "deadly":
            raise TeamFailedError("worker died")
        if job == "last" and self.name == "lost":
            raise TeamLostError("no room")
        return [(self.name, job)]

    def close(self):
        self.ended.append("close")

    def kill(self):
        self.ended.append("kill")


def run(teams, jobs, attempts=2):
    with Pool(lambda: teams, TIMEOUT_S) as pool:
        return {outcome.index: outcome for outcome in pool.run([Item(*job) for job in jobs], attempts)}


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_item_is_given_up_after_the_given_number_of_attempts(attempts):
    team = FakeTeam("only")
    outcomes = run({0: [team]}, [("a",), ("deadly",), ("b",)], attempts)
    assert [outcomes[index].error for index in range(3)] == [None, "worker died", None]
    assert team.asked.count("deadly") == attempts
    assert team.ended == ["close", "kill"]


def test_a_caller_that_learns_of_a_failure_can_end_the_items_before_the_next_one_is_taken():
    failed, team = False, FakeTeam("only")

    def items():
        for job in ("a", "deadly", "b"):
            if not failed:
                yield Item(job)

    with Pool(lambda: {0: [team]}, TIMEOUT_S) as pool:
        for outcome in pool.run(items()):
            failed = outcome.error is not None
    assert failed
    assert team.asked == ["a", "deadly", "deadly"]


def test_an_item_goes_to_a_team_of_its_group():
    outcomes = run({2: [FakeTeam("two")], 4: [FakeTeam("four")]}, [("a", 4), ("b", 2), ("c", 4)])
    assert [outcomes[index].value for index in range(3)] == [[("four", "a")], [("two", "b")], [("four", "c")]]


def test_the_others_do_the_items_of_a_team_that_is_lost():
    lost, kept = FakeTeam("lost"), FakeTeam("kept")
    outcomes = run({0: [lost, kept]}, [("last",)] * 6)
    assert [outcomes[index].value for index in range(6)] == [[("kept", "last")]] * 6
    assert len(lost.asked) <= 1


def test_an_error_says_when_no_team_is_left():
    with pytest.raises(ExecutionError, match="no room"):
        run({0: [FakeTeam("lost")]}, [("last",)])


@pytest.mark.parametrize("parallel", [None, 1, 3])
def test_items_of_one_group_wait_for_its_only_team_while_another_group_is_idle(parallel):
    jobs = [("a", 2), ("b", 2), ("deadly", 2), ("c", 4), ("d", 2), ("e", 4)]
    teams = {2: [FakeTeam("two")], 4: [FakeTeam("four")]}
    with Pool(lambda: teams, TIMEOUT_S, parallel) as pool:
        outcomes = {outcome.index: outcome for outcome in pool.run([Item(*job) for job in jobs])}
    answers = [outcomes[index].value for index in range(6)]
    assert answers == [[("two", "a")], [("two", "b")], None, [("four", "c")], [("two", "d")], [("four", "e")]]


@pytest.mark.parametrize("parallel", [1, 2])
def test_the_loss_of_a_team_does_not_change_how_many_items_run_in_parallel(parallel):
    taken = []

    def items():
        for number in range(6):
            taken.append(number)
            yield Item("last")

    teams = {0: [*(FakeTeam("kept") for _ in range(3)), FakeTeam("lost")]}  # the last team is the first to be asked
    outcomes, running = [], []
    with Pool(lambda: teams, TIMEOUT_S, parallel) as pool:
        for outcome in pool.run(items()):
            outcomes.append(outcome.value)
            running.append(len(taken) - len(outcomes))
    assert teams[0][-1].asked == ["last"]
    assert outcomes == [[("kept", "last")]] * 6
    assert running == [min(parallel, 6 - done) for done in range(1, 7)]


@pytest.mark.parametrize("teams", [{2: [FakeTeam("two")]}, {2: [FakeTeam("two")], 4: []}])
def test_an_item_whose_group_has_no_team_is_refused(teams):
    with pytest.raises(ExecutionError, match="no team was started for group 4 of item 1"):
        run(teams, [("a", 2), ("b", 4)])


def test_a_group_that_loses_its_only_team_ends_the_run_though_others_have_teams():
    with pytest.raises(ExecutionError, match="no room"):
        run({2: [FakeTeam("lost")], 4: [FakeTeam("four")]}, [("last", 2), ("a", 4), ("last", 2)])


def test_a_second_run_within_a_run_is_refused_instead_of_ending_early():
    with Pool(lambda: {0: [FakeTeam("only")]}, TIMEOUT_S) as pool:
        outer = pool.run([Item("a"), Item("b"), Item("c")])
        next(outer)
        with pytest.raises(RuntimeError, match="already"):
            list(pool.run([Item("d")]))


def test_workers_stay_from_one_run_to_the_next():
    opened = []

    def open_teams():
        opened.append(FakeTeam("only"))
        return {0: opened}

    with Pool(open_teams, TIMEOUT_S) as pool:
        assert list(pool.run([])) == []
        assert not opened  # nothing starts without an item
        for _ in range(2):
            assert [outcome.value for outcome in pool.run([Item("a")])] == [[("only", "a")]]
    assert len(opened) == 1
