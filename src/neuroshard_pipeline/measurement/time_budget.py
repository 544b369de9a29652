"""Decides which rounds of visits a campaign still starts on a machine that is slower than expected.

A campaign measures its samples in rounds; a visit is the measurement of one sample in one round. A slow or busy machine
may take several times as long for a round. With fewer rounds, costs are noisier, but all samples have costs in time.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import final

_LOGGER = logging.getLogger(__name__)


@final
class TimeBudget:
    """The rounds that a campaign starts within `budget_s` seconds.

    The first half of the rounds always starts. Each of the others starts if it would end in time at the mean pace of
    the rounds before. The next run measures the visits that are left.

    Args:
        budget_s: seconds from now on, or None for no limit.
        rounds: numbers of the rounds that have visits to measure.
        clock: returns the time in seconds.
    """

    def __init__(
        self, budget_s: float | None, rounds: Collection[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rounds = sorted(set(rounds))
        self._budget_s = budget_s
        self._clock = clock
        self._start_s = clock()
        self._open = -1
        self.is_over = False

    def starts(self, round_: int) -> bool:
        """Whether a chunk of this round is measured. Rounds come in ascending order; a refusal sets `is_over`."""
        place = self._rounds.index(round_)
        if place > self._open and not self._fits(place):
            self.is_over = True
            _LOGGER.warning(
                "stopped after %d of %d rounds of visits, because one more would exceed time_budget_s = %g; the next "
                "run measures the other rounds. Costs are noisier with fewer visits",
                place,
                len(self._rounds),
                self._budget_s,
            )
        else:
            self._open = place
        return not self.is_over

    def _fits(self, place: int) -> bool:
        if self._budget_s is None or 2 * place < len(self._rounds):
            return True
        elapsed_s = self._clock() - self._start_s
        return elapsed_s * (place + 1) / place <= self._budget_s
