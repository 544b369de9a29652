"""Functions that workers of the tests run; workers import this module by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tqdm import tqdm

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.workers.cores import settle_on_core


def square(item):
    return item * item


def square_or_die(item):
    """The square of a number; -1 always kills its worker."""
    if item == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def die_once(item):
    """The number in (folder, number); every third number kills its worker at the first attempt."""
    folder, number = item
    mark = Path(folder) / str(number)
    if number % 3 == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def divide(item):
    return 1 / item


def fail_as_told(item):
    if item == "raise":
        raise ZeroDivisionError("as told")
    if item == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "refuse":
        raise MeasurementError("no such device")
    return "done"


def hang(item):
    if item < 0:
        time.sleep(60)
    return item


def refuse(_item):
    raise MeasurementError("no such device")


def process_id(_item):
    time.sleep(0.05)
    return os.getpid()


def calculator(rank, start):
    def answer(job):
        if job == "die" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "hang" and rank == 0:
            time.sleep(60)
        if job == "raise":
            raise ZeroDivisionError("one over nothing")
        return start + rank, os.getpid()

    return answer


def unfit(_rank):
    raise MeasurementError("no such device")


def settled(place, size):
    """Number of cores and scheduler of this process after it has settled."""
    settle_on_core(place, size)
    return len(os.sched_getaffinity(0)), os.sched_getscheduler(0)


def with_progress_bar(number):
    """Return the number, and show a progress bar as searches do."""
    return sum(tqdm([number], disable=None))
