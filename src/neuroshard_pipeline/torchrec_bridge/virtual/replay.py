"""The times of all ranks in a step, from their logs and a network.

The clock of a rank advances by its CPU time. A rank's collectives run one after the other, as on one network card, and
beside its computation. The clock stands still where the rank needs a collective that is not done yet.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.torchrec_bridge.ranks import RankError
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective, StepLog
from neuroshard_pipeline.torchrec_bridge.virtual.networks import Network

_MS_PER_S = 1e3
_USUAL = 0.25
_NEIGHBOURS = 5  # a turn, two before it and two after it
_RATIO_ERROR = 0.02  # log ratios of turns that miss the fitted ratio by more count linearly


class Turn(NamedTuple):
    """The turn of a taker in a round; `taker` is the number of a plan or of a kind of step, from 0 on."""

    round: int
    taker: int


@dataclass
class RankTimes:
    """The times of one rank in a step, in ms from the start of the step: those of the marks in its log, and CPU time.

    `transfer_ms` is the time in which the rank stands still for the transfers of its collectives, `waiting_ms` that in
    which it stands still because another rank has not started a collective yet. For every mark, there are also the
    CPU time and the waiting up to it.
    """

    marks_ms: list[float] = field(default_factory=list)
    computed_marks_ms: list[float] = field(default_factory=list)
    waiting_marks_ms: list[float] = field(default_factory=list)
    computed_ms: float = 0.0
    transfer_ms: float = 0.0
    waiting_ms: float = 0.0


class _Start(NamedTuple):
    """The number of a collective in the log of a rank, and the time at which the rank starts it."""

    number: int
    ms: float


class _Rank:
    """A rank's progress through its log."""

    def __init__(self, log: StepLog) -> None:
        self.log, self.times = log, RankTimes()
        self.clock_ms = 0.0
        self.wire_free_ms = 0.0
        self.done: dict[int, tuple[float, float]] = {}  # when the last rank was there, when it is done
        self._at, self._is_blocked = 0, False

    @property
    def is_finished(self) -> bool:
        return self._at == len(self.log.events)

    def next_start(self) -> int | None:
        """Run to the next start of a collective and return its number; None at the end, or if the rank must wait."""
        while not self.is_finished:
            event = self.log.events[self._at]
            if not self._is_blocked:
                self.clock_ms += _MS_PER_S * event.cpu_s
                self.times.computed_ms += _MS_PER_S * event.cpu_s
            self._is_blocked = event.kind == "wait" and event.number not in self.done
            if self._is_blocked:
                return None
            self._at += 1
            if event.kind == "start":
                return event.number
            if event.kind == "mark":
                self.times.marks_ms.append(self.clock_ms)
                self.times.computed_marks_ms.append(self.times.computed_ms)
                self.times.waiting_marks_ms.append(self.times.waiting_ms)
            else:
                self._wait(*self.done[event.number])
        return None

    def _wait(self, all_there_ms: float, done_ms: float) -> None:
        stood_ms = max(done_ms - self.clock_ms, 0.0)
        waiting_ms = min(max(all_there_ms - self.clock_ms, 0.0), stood_ms)
        self.times.waiting_ms += waiting_ms
        self.times.transfer_ms += stood_ms - waiting_ms
        self.clock_ms += stood_ms


def slowdowns(takers: Sequence[int], cpu_s: Sequence[float]) -> FloatArray:
    """How much longer every turn (T,) took than at the machine's usual speed, which the quickest quarter reaches.

    Other programs take cache, memory bandwidth and half of a core with two threads, and they come and go within
    seconds. The CPU time of a turn is modelled as a product: the cost of what takes the turn, and a slowdown. The costs
    are fitted to the ratios of turns that follow each other, whose slowdowns are nearly the same; a slowdown is the
    median of what is left over a turn and its neighbours.

    Args:
        takers: the number of what takes a turn (T,), from 0 on, for turns that follow each other.
        cpu_s: CPU times of the turns (T,), in s, summed over ranks; all are positive.
    """
    from scipy.ndimage import median_filter  # imported late, because searches need neither
    from scipy.optimize import least_squares

    log_s = np.log(cpu_s)
    is_taker = np.eye(max(takers) + 1)[list(takers)]
    change, taker_change = (np.diff(values, axis=0, prepend=values[:1]) for values in (log_s, is_taker))
    fit = least_squares(
        lambda costs: change - taker_change @ costs,
        np.zeros(is_taker.shape[1]),
        jac=lambda _: -taker_change,
        loss="soft_l1",
        f_scale=_RATIO_ERROR,
    )
    slow = median_filter(log_s - is_taker @ fit.x, _NEIGHBOURS, mode="nearest")
    return np.exp(slow - np.quantile(slow, _USUAL))


def steadied(steps: Sequence[Sequence[StepLog]], slow: Sequence[float]) -> list[StepLog]:
    """One log per rank whose CPU times are medians over steps with equal events and collectives, at the usual speed.

    The slowest of many ranks counts in every step. In a replay of a single step, one disturbed rank of many would slow
    down all. `steps` holds, for every step, the log of every rank, and `slow` its slowdown (`slowdowns`).
    """
    found = []
    for logs in zip(*steps, strict=True):
        cpu_s = np.array([[event.cpu_s for event in log.events] for log in logs]) / np.reshape(slow, (-1, 1))
        medians = np.median(cpu_s, axis=0).tolist()
        events = (event._replace(cpu_s=s) for event, s in zip(logs[0].events, medians, strict=True))
        found.append(logs[0]._replace(events=tuple(events)))
    return found


def replayed_steps(
    steps: Sequence[Sequence[StepLog]], turns: Sequence[Turn], network: Network
) -> Iterator[tuple[int, list[RankTimes]]]:
    """The number of every step, and the times of its ranks; equal steps in even, or in odd, rounds have one time.

    `steps` holds the log of every rank for every step, in their order, and `turns` the turn of every step.
    """
    of_turns = defaultdict[Turn, list[float]](list)
    for turn, logs in zip(turns, steps, strict=True):
        of_turns[turn].append(sum(event.cpu_s for log in logs for event in log.events))
    means = [float(np.mean(own)) for own in of_turns.values()]
    slow = dict(zip(of_turns, slowdowns([turn.taker for turn in of_turns], means).tolist(), strict=True))
    alike = defaultdict(list)
    for number, (turn, logs) in enumerate(zip(turns, steps, strict=True)):
        alike[turn.taker, turn.round % 2, tuple(log.structure for log in logs)].append(number)
    for numbers in alike.values():
        own = steadied([steps[number] for number in numbers], [slow[turns[number]] for number in numbers])
        times = replayed(own, network)
        yield from ((number, times) for number in numbers)


def replayed(logs: Sequence[StepLog], network: Network) -> list[RankTimes]:
    """The times of every rank in a step that all ranks begin together, from the log of every rank.

    Raises:
        RankError: the ranks' collectives do not match.
    """
    ranks = [_Rank(log) for log in logs]
    counts: dict[tuple[int, str], int] = defaultdict(int)
    started: dict[tuple[str, tuple[int, ...], int], dict[int, _Start]] = defaultdict(dict)
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            while (index := rank.next_start()) is not None:
                moved = True
                collective = rank.log.collectives[index]
                key = collective.group, collective.ranks, counts[number, collective.group]
                counts[number, collective.group] += 1
                started[key][number] = _Start(index, rank.clock_ms)
                if len(started[key]) == len(collective.ranks):
                    _run(ranks, started.pop(key), network)
    if started or not all(rank.is_finished for rank in ranks):
        raise RankError("the ranks did not start the same collectives; no time of this step can be given")
    return [rank.times for rank in ranks]


def _run(ranks: Sequence[_Rank], starts: dict[int, _Start], network: Network) -> None:
    """Run a collective that all its ranks have started."""
    some, start = next(iter(starts.items()))
    order = ranks[some].log.collectives[start.number].ranks
    collectives: list[Collective] = [ranks[number].log.collectives[starts[number].number] for number in order]
    starts_ms: FloatArray = np.array([max(starts[number].ms, ranks[number].wire_free_ms) for number in order])
    for number, done_ms in zip(order, network(collectives, starts_ms).tolist(), strict=True):
        ranks[number].done[starts[number].number] = float(starts_ms.max()), done_ms
        ranks[number].wire_free_ms = done_ms
