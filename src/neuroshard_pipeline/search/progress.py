"""A progress bar for searches that take several seconds."""

from collections.abc import Iterable

from tqdm import tqdm

_DELAY_SECONDS = 3.0  # a bar appears on a terminal after this time


def with_progress(count: int, what: str) -> Iterable[int]:
    """`range(count)` with a bar that vanishes when the search ends, even before `count`."""
    return tqdm(range(count), desc=what, delay=_DELAY_SECONDS, leave=False, disable=None)
