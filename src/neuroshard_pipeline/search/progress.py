"""A progress bar for searches that take long enough to be waited for."""

from __future__ import annotations

from collections.abc import Iterator

from tqdm import tqdm

#: A bar appears on a terminal, after so many seconds.
_DELAY_SECONDS = 3.0


def with_progress(count: int, what: str) -> Iterator[int]:
    """`range(count)`; the bar vanishes when the search ends, also before `count`."""
    with tqdm(total=count, desc=what, delay=_DELAY_SECONDS, leave=False, disable=None) as bar:
        for number in range(count):
            yield number
            bar.update()
