"""A progress bar for searches that take several seconds."""

from collections.abc import Iterator

from tqdm import tqdm

#: A bar appears on a terminal after this many seconds.
_DELAY_SECONDS = 3.0


def with_progress(count: int, what: str) -> Iterator[int]:
    """Iterate over `range(count)` with a bar that vanishes when the search ends, even before `count`."""
    with tqdm(total=count, desc=what, delay=_DELAY_SECONDS, leave=False, disable=None) as bar:
        for number in range(count):
            yield number
            bar.update()
