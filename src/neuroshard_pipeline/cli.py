"""The `kedro` command of this project: Kedro's own `run`, with errors that a person can act on."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.cli.utils import KedroCliError
from kedro.io import DatasetError
from kedro.validation import ParameterValidationError

from neuroshard_pipeline.errors import NeuroShardError

#: Errors that speak for themselves: they name the file or parameter, the value and the remedy.
_SPEAKING = (NeuroShardError, ParameterValidationError, DatasetError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and everything that led to it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def explain(error: Exception) -> str | None:
    """One line for an error that was raised on purpose, or None for a defect, which deserves its traceback."""
    chain = list(_causes(error))
    ours = [cause for cause in chain if isinstance(cause, NeuroShardError)]
    speaking = ours or [cause for cause in chain if isinstance(cause, _SPEAKING)]
    if speaking:
        return str(speaking[0]).strip()
    if isinstance(error, ValueError) and "Failed to find the pipeline" in str(error):
        return str(error).strip()
    return None


def _plainly(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command's callback so that expected errors end in one line and exit status 1."""

    @functools.wraps(callback)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # `--pipeline X` is the documented spelling of this project; Kedro would warn in favour of `--pipelines`.
        warnings.filterwarnings("ignore", message="Option '--pipeline' is deprecated")
        try:
            return callback(*args, **kwargs)
        except click.ClickException:
            raise
        except Exception as error:
            message = explain(error)
            if message is None:
                raise
            raise KedroCliError(message) from None

    return wrapped


run = copy.copy(kedro_run)
run.callback = _plainly(kedro_run.callback)


@click.group(name="neuroshard_pipeline")
def cli() -> None:
    """Commands of the project."""


cli.add_command(run)
