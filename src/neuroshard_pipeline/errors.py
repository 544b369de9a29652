"""The one family of errors that this project raises on purpose.

A message names the file or parameter, the offending value and the remedy; the command line prints it
without a traceback.
"""

import difflib
from collections.abc import Iterable


class NeuroShardError(Exception):
    """Base class: whatever the project refuses, it refuses with a subclass of this."""


class TableFileError(NeuroShardError):
    """A file of embedding tables is missing, malformed or holds an impossible value."""


class TaskError(NeuroShardError):
    """A table, a sharding task or a sample is impossible as it stands."""


class MeasurementError(NeuroShardError):
    """A measurement backend is missing or a campaign cannot be run."""


class ExecutionError(NeuroShardError):
    """The engine that shall run many items is missing or cannot be reached."""


class CostModelError(NeuroShardError):
    """A cost model is missing, incompatible or asked for something it was not trained for."""


class PlanError(NeuroShardError):
    """A plan violates an invariant: uncovered or doubly covered columns, bad widths, memory exceeded."""


class DoesNotFitError(PlanError):
    """No plan within the memory limits was found; the message names the missing bytes."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the known name that is nearest to a mistyped one, or nothing where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
