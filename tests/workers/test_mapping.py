from __future__ import annotations

import os
import subprocess
import sys
from itertools import count, islice
from operator import attrgetter

import pytest

from neuroshard_pipeline import workers
from neuroshard_pipeline.errors import ExecutionError, MeasurementError
from neuroshard_pipeline.workers import Outcome, WorkerParams, map_items
from workers.item_functions import die_once, divide, hang, process_id, refuse, square, square_or_die


def params_for(engine, address=None, workers=2, timeout_s=180.0):
    return WorkerParams(engine=engine, address=address, workers=workers, timeout_s=timeout_s)


LOCAL = params_for("local")


@pytest.fixture
def params():
    """Workers of the engine `local`; `measurement.test_ray_campaign` runs some of these tests with those of `ray`."""
    return LOCAL


def test_every_item_has_its_value(params):
    outcomes = sorted(map_items(square, range(20), params), key=attrgetter("index"))
    assert outcomes == [Outcome(index, index * index, None) for index in range(20)]


def test_no_items_give_no_outcomes():
    assert list(map_items(square, [], LOCAL)) == []


def test_an_item_that_keeps_killing_its_worker_is_an_error_and_the_others_are_done(params):
    items = [0, 1, 2, -1, 4, 5]
    outcomes = {outcome.index: outcome for outcome in map_items(square_or_die, items, params)}
    assert sorted(outcomes) == list(range(len(items)))
    assert "died" in outcomes[3].error
    assert {index: outcome.value for index, outcome in outcomes.items() if outcome.error is None} == {
        index: item * item for index, item in enumerate(items) if item != -1
    }


def test_an_item_whose_worker_was_killed_once_is_tried_again(tmp_path):
    outcomes = list(map_items(die_once, [(str(tmp_path), number) for number in range(6)], LOCAL))
    assert sorted(outcome.value for outcome in outcomes) == list(range(6))
    assert {path.name for path in tmp_path.iterdir()} == {"0", "3"}


def test_an_item_that_raises_is_an_error(params):
    outcomes = {outcome.index: outcome for outcome in map_items(divide, [1, 0, 2], params)}
    assert outcomes[1].error == "ZeroDivisionError: division by zero"
    assert (outcomes[0].value, outcomes[2].value) == (1.0, 0.5)


def test_an_error_of_the_project_ends_the_map(params):
    with pytest.raises(MeasurementError, match="no such device"):
        list(map_items(refuse, [1, 2], params))


def test_items_are_taken_when_they_are_needed():
    endless = count()
    outcomes = map_items(square, endless, LOCAL)
    some = [outcome.value for outcome in islice(outcomes, 5)]
    outcomes.close()
    taken = next(endless)
    assert taken == len(some) + LOCAL.workers  # every worker has its next item
    assert set(some) <= {number * number for number in range(taken)}


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "neuroshard_pipeline.workers.ray_team", raising=False)
    monkeypatch.delattr(workers, "ray_team", raising=False)
    with pytest.raises(ExecutionError, match=r"extra \[cluster\], or use the engine local"):
        list(map_items(square, [1], params_for("ray")))


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced():
    list(map_items(square, [1], LOCAL))  # imports the modules of the workers before the 4 s begin
    outcomes = {o.index: o for o in map_items(hang, [-1, 1], params_for("local", workers=1, timeout_s=4.0))}
    assert "did not answer within 4 s" in outcomes[0].error
    assert outcomes[1].value == 1


def test_a_single_worker_is_a_process_of_its_own():
    (outcome,) = map_items(process_id, [0], params_for("local", workers=1))
    assert outcome.value != os.getpid()


def test_workers_that_search_need_no_torch():
    """The package without extras plans for modelled clusters."""
    code = "from neuroshard_pipeline.workers.mapping import _set_up; print(_set_up(0, abs, 2)(-1))"
    without = f"import sys; sys.modules['torch'] = None; {code}"
    found = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=True)
    assert found.stdout == "(1, None)\n"
