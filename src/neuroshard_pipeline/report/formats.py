"""Numbers as text."""

from collections.abc import Sequence

#: Stands for a value that does not exist.
MISSING = "-"


def decimals_for(values: Sequence[float | None]) -> int:
    """Number of decimals for a column: it shows at least three digits of the largest value if that is 0.001 or more."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return next((decimals for edge, decimals in ((100, 1), (10, 2), (1, 3), (0.1, 4)) if largest >= edge), 5)


def fixed(value: float | None, decimals: int) -> str:
    """Fixed-point text; a dash for None, and `<0.001` for a positive value that would round to zero."""
    if value is None:
        return MISSING
    smallest = 10.0**-decimals
    return f"<{smallest:.{decimals}f}" if 0 < value < smallest / 2 else f"{value:,.{decimals}f}"


def amount(value: float) -> str:
    """A number with at least three significant digits, for running text: `3.21`, `0.0123`, `1,234`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".rstrip(".")


def percent(share: float) -> str:
    """A share as a percentage: `3.1 %`, `19 %`."""
    return f"{100 * share:.{0 if abs(share) >= 0.1 else 1}f} %"


def plural(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
