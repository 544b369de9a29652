"""The command `kedro run`, Kedro's own; errors that the user can correct have no traceback."""

import copy
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, get_args

import click
from kedro.config import MissingConfigException
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.project import pipelines
from kedro.io import DatasetError
from kedro.utils import load_obj
from kedro.validation import ParameterValidationError
from kedro.validation.type_extractor import TypeExtractor
from pydantic import BaseModel
from yaml import YAMLError
from yaml.parser import ParserError

from neuroshard_pipeline.errors import NeuroShardError, did_you_mean
from neuroshard_pipeline.hooks import NO_GROUP

#: One problem in pydantic's report: a line that ends with the field (or with the name of the whole type), then a line
#: with the message and the value.
_PYDANTIC_PROBLEM = re.compile(r"([\w.]+)\n  (.+?) \[type=\w+, input_value=(.*), input_type=\w+\]$", re.MULTILINE)
#: The lists of allowed values in pydantic's messages and in those of this project.
_CHOICES = re.compile(r"^Input should be ('.*')$|use (?:one|some) of ([\w, ]+?)(?:, not '|;|$)")
#: Pydantic's messages about a required field that is not set, and about a field that the type does not have.
_MISSING, _UNKNOWN = "Field required", "Extra inputs are not permitted"
#: What Kedro and pydantic say of a value that is given for a group of parameters.
_NO_GROUP = re.compile("must be a valid dictionary( or .*)?$|type is not Optional$")
#: Kedro's message about a name that an option such as --from-nodes, --to-outputs or --namespaces gives.
_UNKNOWN_NAME = re.compile(r"Pipeline does not contain .*?(node|dataset|namespace)s(?: named|:) \['(.+?)'")
#: What the values of some options of `kedro run` must be; Kedro does not check them.
_MUST_BE = {
    "runner": "no such runner; use SequentialRunner, ThreadRunner or ParallelRunner, or the path of a class",
    "config": "the file must be YAML with a section `run:` that holds options, such as pipeline: plan",
}
#: Parts that are removed from pydantic's messages about invalid values.
_DETAIL = re.compile(r", unable to parse .*$|^Value error, ")


def explain(error: Exception) -> str | None:
    """The message for an error that the user can correct; None for a defect of the program, which needs a traceback."""
    chain: list[BaseException] = [error]  # the error and all errors that caused it, outermost first
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for kind in (NeuroShardError, ParameterValidationError, DatasetError):
        for text in (str(each).strip() for each in chain if isinstance(each, kind)):
            return parameter_problems(text) if kind is ParameterValidationError else text
    if unknown := re.search(r"Failed to find the pipeline named '(.+?)'", str(error)):
        hint = did_you_mean(unknown[1], pipelines) or f"; use one of {', '.join(sorted(pipelines))}"
        return f"pipeline {unknown[1]!r} does not exist{hint}"
    if unknown := _UNKNOWN_NAME.search(str(error)):
        return _unknown_name(unknown[1].replace("node", "name"), unknown[2])
    if str(error).startswith("Pipeline contains no nodes after applying all provided filters"):
        tags = {tag for each in set(pipelines) for node in pipelines[each].nodes for tag in node.tags}
        return f"no node of the pipeline meets all options (--tags, --nodes ...); tags are {', '.join(sorted(tags))}"
    if isinstance(error, MissingConfigException):
        return f"{str(error).strip()}; run in the project folder, with --env naming a folder below conf/"
    if isinstance(error, ParserError | OSError):
        return str(error).strip()
    return None


def _unknown_name(kind: str, name: str) -> str:
    """The message about a node (`kind` is then `name`), a namespace or a dataset that a run does not have."""
    shown = f"{'node' if kind == 'name' else kind} {name!r}"
    names: dict[str, set[str]] = {
        each: flow.datasets() if kind == "dataset" else {str(getattr(node, kind)) for node in flow.nodes}
        for each, flow in pipelines.items()
    }
    if homes := [each for each in names if name in names[each]]:
        home = min(homes, key=lambda each: len(names[each]))
        return f"{shown} is not in the pipeline of this run; add --pipeline {home}"
    hint = did_you_mean(name, set().union(*names.values())) or "; `kedro registry describe PIPELINE` lists all nodes"
    return f"{shown} does not exist{hint}"


def parameter_problems(text: str) -> str:
    """Kedro's report of invalid parameters as one line per problem: the parameter, its value and what it must be.

    The report repeats that of pydantic for each parameter, over many lines. One of another form is returned as it is.
    """
    types: dict[str, Any] = TypeExtractor(dict(pipelines)).extract_types_from_pipelines()
    lines = set()
    for report in re.split(r"\n- (?=Parameter ')", text)[1:]:
        name, _, message = report.removeprefix("Parameter '").partition("': ")
        problems = _root_problems(_PYDANTIC_PROBLEM.findall(report))
        lines |= {_problem(name, types.get(name), *problem) for problem in problems}
        lines |= set() if problems else {f"parameter {name}: {_NO_GROUP.sub(NO_GROUP, message.strip())}"}
    return "\n".join(sorted(lines)) or text


def _root_problems(problems: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Leave out problems `(field, message, value)` that are possibly mere consequences of other problems.

    A list with an invalid item may be reported as too short, because the item does not count. If a name is unknown, a
    field may be missing only because its name is misspelt.
    """
    messages = {message for _, message, _ in problems}
    return [
        (field, message, value)
        for field, message, value in problems
        if not any(other.startswith(f"{field}.") for other, _, _ in problems)
        and not (message == _MISSING and _UNKNOWN in messages)
    ]


def _problem(parameter: str, annotation: Any, field: str, message: str, value: str) -> str:
    """A line about one problem of a parameter; `annotation` is the type of the parameter."""
    model = _model_of(annotation)
    told = _NO_GROUP.sub(NO_GROUP, _DETAIL.sub("", message).replace("Input should be ", "must be "))
    if model is not None and field == model.__name__:
        # A message about several fields names their values itself.
        given = "" if message.startswith("Value error") else f"={value}"
        return f"parameter {parameter}{given}: {told}"
    if message == _MISSING:
        return f"parameter {parameter}.{field} is missing; set it in conf/<env>/parameters_*.yml or with --params"
    if message == _UNKNOWN:
        *outer, last = field.split(".")
        known = _field_names(annotation, outer)
        hint = did_you_mean(last, known) or f"; use one of {', '.join(known)}"
        return f"parameter {parameter}.{field}={value} does not exist{hint}"
    path = f"; write a path as ./{value}" if message.endswith("valid string") and value.isdigit() else ""
    return f"parameter {parameter}.{field}={value}: {told}{path}{_choice_hint(message, value)}"


def _choice_hint(message: str, value: str) -> str:
    """`; did you mean 'x'?` with the allowed value that is most similar to a mistyped one; empty if none is similar."""
    listed = _CHOICES.search(message)
    choices = re.findall(r"\w+", listed[1] or listed[2]) if listed else []
    wrong = [name for name in re.findall(r"'(\w+)'", value) if name not in choices]
    return did_you_mean(wrong[0], choices) if wrong else ""


def _field_names(annotation: Any, path: list[str]) -> list[str]:
    """Names of the fields at `path` inside a type; `path` holds field names and list positions and may be empty."""
    for part in (part for part in path if not part.isdigit()):
        model = _model_of(annotation)
        annotation = model.model_fields[part].annotation if model and part in model.model_fields else None
    model = _model_of(annotation)
    return list(model.model_fields) if model else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model that an annotation is or contains, as in `list[Model]`."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _with_plain_errors(command: click.Command) -> click.Command:
    """A copy of the command. An error that the user can correct ends it with status 1 and without a traceback."""
    callback: Callable[..., Any] = command.callback  # type: ignore[assignment]

    @functools.wraps(callback)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # This project documents `--pipeline X`; Kedro would recommend `--pipelines` in a warning.
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


def _checked(option: click.Parameter) -> click.Parameter:
    """A copy of an option of `kedro run`. A value that Kedro would answer with a traceback ends it in one line."""
    checked, callback = copy.copy(option), option.callback

    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            value = callback(context, parameter, value) if callback else value
            if value and option.name == "runner":
                load_obj(value, "kedro.runner")
        except (KeyError, TypeError, AttributeError, ImportError, ValueError, YAMLError):
            raise click.ClickException(f"--{option.name} {value}: {_MUST_BE[str(option.name)]}") from None
        return value

    checked.callback = check
    return checked


_run = copy.copy(kedro_run)
_run.params = [_checked(option) if option.name in _MUST_BE else option for option in kedro_run.params]
run = _with_plain_errors(_run)


@click.group(name="neuroshard_pipeline")
def cli() -> None:
    """Commands of the project."""


cli.add_command(run)
