"""The `kedro` command of this project: Kedro's own `run`, with errors that a person can act on."""

from __future__ import annotations

import copy
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, get_args

import click
from kedro.config import MissingConfigException
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.project import pipelines
from kedro.io import DatasetError
from kedro.validation import ParameterValidationError
from kedro.validation.type_extractor import TypeExtractor
from pydantic import BaseModel
from yaml.parser import ParserError  # type: ignore[import-untyped]

from neuroshard_pipeline.errors import NeuroShardError, did_you_mean

#: One problem as pydantic words it: the field on one line, then what is wrong with which value.
_PYDANTIC_PROBLEM = re.compile(r"^([\w.]+)\n  (.+?) \[type=\w+, input_value=(.*), input_type=\w+\]$", re.MULTILINE)
#: How pydantic, and how our own types, list the values that a parameter may have.
_CHOICES = re.compile(r"^Input should be ('.*')$|use (?:one|some) of ([\w, ]+?)(?:, not '|;|$)")
_UNKNOWN_NAME = "Extra inputs are not permitted"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and everything that led to it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def explain(error: Exception) -> str | None:
    """What to tell about an error that was raised on purpose, or None for a defect, which deserves its traceback."""
    chain = list(_causes(error))
    for kind in (NeuroShardError, ParameterValidationError, DatasetError):
        for cause in chain:
            if isinstance(cause, kind):
                text = str(cause).strip()
                return parameter_problems(text) if kind is ParameterValidationError else text
    if isinstance(error, ValueError) and "Failed to find the pipeline" in str(error):
        return str(error).strip()
    if isinstance(error, MissingConfigException):
        return f"{str(error).strip()}\nRun it in the project's folder, with --env naming a folder below conf/."
    if isinstance(error, ParserError | OSError):
        return str(error).strip()
    return None


def parameter_problems(text: str) -> str:
    """Kedro's report of bad parameters, one line per value.

    Args:
        text: `Parameter validation failed:` followed by what pydantic says of each parameter, over many lines.
    """
    lines = []
    for report in re.split(r"\n- (?=Parameter ')", text)[1:]:
        name = report.split("'")[1]
        for field, message, value in _PYDANTIC_PROBLEM.findall(report):
            place = name if field.endswith("Params") or field == "MemoryModel" else f"{name}.{field}"
            given = "" if message == "Field required" else f", but is {value}{_hint(name, field, message, value)}"
            lines.append(f"{place}: {message}{given}")
    if not lines:
        return text
    remedy = "Correct it in conf/<env>/parameters_*.yml or in --params; the meaning of every value stands in its type."
    return "\n".join(["bad parameters", *(f"  {line}" for line in sorted(set(lines))), remedy])


def _hint(parameter: str, field: str, message: str, value: str) -> str:
    """The nearest name that a mistyped parameter, or a mistyped value of few possible ones, may have meant."""
    if message == _UNKNOWN_NAME:
        *outer, last = field.split(".")
        return did_you_mean(last, _field_names(_parameter_types().get(parameter), outer))
    if listed := _CHOICES.search(message):
        choices = re.findall(r"\w+", listed[1] or listed[2])
        wrong = [name for name in re.findall(r"'(\w+)'", value) if name not in choices]
        return did_you_mean(wrong[0], choices) if wrong else ""
    return ""


def _parameter_types() -> dict[str, Any]:
    """The types that the nodes of the project give to their parameters."""
    types: dict[str, Any] = TypeExtractor(dict(pipelines)).extract_types_from_pipelines()
    return types


def _field_names(annotation: Any, path: list[str]) -> list[str]:
    """Names of the fields of a type, or of the type that a path of field names and list positions leads to in it."""
    models = [annotation, *get_args(annotation)]
    model = next((kind for kind in models if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    if model is None:
        return []
    path = [part for part in path if not part.isdigit()]
    if not path:
        return list(model.model_fields)
    return _field_names(model.model_fields[path[0]].annotation, path[1:]) if path[0] in model.model_fields else []


def _plainly(command: click.Command) -> click.Command:
    """The same command, with expected errors told in plain words and ending in exit status 1."""
    callback: Callable[..., Any] = command.callback  # type: ignore[assignment]

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
            raise click.ClickException(message) from None

    plain = copy.copy(command)
    plain.callback = wrapped
    return plain


run = _plainly(kedro_run)


@click.group(name="neuroshard_pipeline")
def cli() -> None:
    """Commands of the project."""


cli.add_command(run)
