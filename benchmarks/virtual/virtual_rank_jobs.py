"""Jobs of virtual ranks for `bench_virtual_ranks.py`: steps with the wall clock, and steps without turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.torchrec_bridge.truth import steps
from neuroshard_pipeline.torchrec_bridge.virtual import log as virtual_log
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective, RankLog, StepLog
from neuroshard_pipeline.torchrec_bridge.virtual.networks import Network

#: Per collective of a step, by its number in the log: seconds of the host's clock when this rank starts it, and when it
#: has waited for it.
Moments = dict[int, list[float]]


def set_up_with_wall_clock(*arguments: Any) -> Callable[[steps.Group], list[tuple[steps.Step, float, Moments]]]:
    """Like `steps.set_up_rank`; every step comes with its milliseconds by the wall clock, and the moments."""
    of_steps: list[tuple[float, Moments]] = []
    moments: Moments = {}
    marks_s: list[float] = []
    add, away, finish = RankLog._add, RankLog.away, RankLog.finish
    now = RankLog.now

    def timed_now(log: RankLog) -> float:
        number = now(log)
        marks_s.append(time.monotonic())
        return number

    def timed_add(log: RankLog, kind: Any, number: int) -> None:
        add(log, kind, number)
        if kind == "start":
            moments[number] = [time.monotonic()]

    @contextmanager
    def timed_away(log: RankLog, back: Callable[[], None]) -> Iterator[None]:
        with away(log, back):
            yield
        last = next(event for event in reversed(log._events) if event.kind != "mark") if log._collectives else None
        if last is not None:
            moments[last.number].append(time.monotonic())

    def timed_finish(log: RankLog) -> StepLog:
        of_steps.append((1e3 * (marks_s[-1] - marks_s[0]), dict(moments)))
        moments.clear()
        marks_s.clear()
        return finish(log)

    RankLog.now, RankLog._add, RankLog.away, RankLog.finish = timed_now, timed_add, timed_away, timed_finish
    measure = steps.set_up_rank(*arguments)

    def answer(group: steps.Group) -> list[tuple[steps.Step, float, Moments]]:
        of_steps.clear()
        return [(step, *own) for step, own in zip(measure(group), of_steps, strict=True)]

    return answer


def gloo_in_place(moments: Sequence[Moments]) -> Network:
    """The times of the collectives of one step as they were in that step, from the moments of all ranks."""
    numbers = iter(range(len(moments[0])))
    free_s = np.zeros(len(moments))  # in a replay, the collectives of a rank run one after the other

    def done_ms(_: Sequence[Collective], starts_ms: FloatArray) -> FloatArray:
        nonlocal free_s
        number = next(numbers)
        start_s = max(max(own[number][0], free) for own, free in zip(moments, free_s, strict=True))
        free_s = np.array([own[number][1] for own in moments])
        return starts_ms.max() + 1e3 * (free_s - start_s)

    return done_ms


def set_up_without_turns(*arguments: Any) -> Callable[[Any], Any]:
    """Like `steps.set_up_rank`, but ranks do not take turns on their core."""
    virtual_log.fcntl = type("NoLocks", (), {"flock": lambda *_: None, "LOCK_EX": 0, "LOCK_UN": 0})
    return steps.set_up_rank(*arguments)
