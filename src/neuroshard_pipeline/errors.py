"""The errors that several packages raise, and the base class of all error classes of this project that callers meet.

Each message names file or parameter, invalid value and remedy. The command line prints it without a traceback.
"""

import difflib
from collections.abc import Iterable
from decimal import ROUND_CEILING, Context, Decimal


class NeuroShardError(Exception):
    """Base class of all error classes of this project, except internal ones that callers never meet."""


class TableFileError(NeuroShardError):
    """A file (tables, tasks, ids, constraints, bandwidths, timings) is missing, malformed or has impossible values."""


class TaskError(NeuroShardError):
    """A table, a constraint, a sharding task or a sample (what one measurement runs) has impossible values."""


class MeasurementError(NeuroShardError):
    """Measurements cannot run (such as without a backend) or be read, or the lab has no model of a GPU or network."""


class ExecutionError(NeuroShardError):
    """Worker processes cannot be started or have been lost."""


class CostModelError(NeuroShardError):
    """A cost model is missing or incompatible, cannot be trained, or cannot predict what is requested."""


class ConstraintError(NeuroShardError):
    """A sharder cannot respect a constraint of the task; the message names the table and the remedy."""


class PlanError(NeuroShardError):
    """A plan is invalid (rows or columns missing or covered twice, too little memory) or does not suit a user's model.

    It may also be impossible to make, store or read a plan as requested.
    """


class DoesNotFitError(PlanError):
    """A sharder found no plan within the memory limits; the message states the reason."""


class TooLargeError(DoesNotFitError):
    """A search or a plan would need too much memory or time; the message states the remedy, such as fewer ranks."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the known name that is most similar to `name`; empty if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def memory_text(count: int) -> str:
    """An amount of memory in GiB, rounded up to four digits, and in bytes; below 1 MiB in bytes only."""
    if abs(count) < 2**20:
        return f"{count} bytes"
    gib = Context(prec=4, rounding=ROUND_CEILING).divide(Decimal(count), Decimal(2**30))
    return f"{float(gib):g} GiB ({count} bytes)"
