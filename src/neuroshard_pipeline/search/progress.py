"""A progress bar for searches that take several seconds."""

from collections.abc import Iterable

from tqdm import tqdm


def with_progress(count: int, what: str) -> Iterable[int]:
    """`range(count)` with a bar that appears after 3 seconds and vanishes when the search ends, even before `count`."""
    return tqdm(range(count), desc=what, delay=3.0, leave=False, disable=None)
