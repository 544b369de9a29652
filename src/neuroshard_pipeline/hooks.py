"""Kedro hooks: refuse unknown parameters, record versions, announce durations, limit threads, print results."""

import json
import logging
import time
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
from kedro.framework.hooks import hook_impl
from kedro.framework.project import pipelines
from kedro.io import AbstractVersionedDataset, CatalogProtocol
from kedro.pipeline import Node, Pipeline
from pydantic import BaseModel, NonNegativeInt, TypeAdapter, ValidationError
from threadpoolctl import threadpool_limits

from neuroshard_pipeline import __version__
from neuroshard_pipeline.datasets.atomic import replacing
from neuroshard_pipeline.duration import announcement, estimate_minutes, slowdown
from neuroshard_pipeline.errors import NeuroShardError, did_you_mean
from neuroshard_pipeline.lab.params import lab_values
from neuroshard_pipeline.report import summary_table

#: Dataset from which nodes read the versions of the run's inputs and outputs.
LINEAGE_DATASET = "lineage"
_LOGGER = logging.getLogger(__name__)
#: Maps the single parameters that the project reads outside groups to their types; Kedro validates only groups.
_TYPES: dict[str, TypeAdapter[Any]] = {
    "data_root": TypeAdapter(str),
    "measure.seed": TypeAdapter(NonNegativeInt),
    "expected_seconds": TypeAdapter(dict[str, float] | None),
    "budgeted_seconds": TypeAdapter(dict[str, float] | None),
}
#: Parameters that configuration files or hooks read, and maybe no node.
RUNTIME_PARAMETERS = {"local_world_size", "torchrun_endpoint", "lab", *_TYPES}
_GROUP: TypeAdapter[Any] = TypeAdapter(dict[str, Any] | BaseModel)
#: The message about a single value that is given for a group of parameters.
NO_GROUP = "must be a group of parameters; conf/base/parameters_*.yml lists those in it"
#: Text datasets that are printed at the end of a run that has made them.
_TEXTS = ("advise.table", "replan.table", "train_check.table", "truth.table", "benchmark.table", "plan.explanation")
#: Datasets whose path is printed at the end of a run that has made them, each with the title that is printed.
_FILE_DATASETS = {
    **dict.fromkeys(("search.report", "advise.report"), "Report"),
    **dict.fromkeys(("plan.page", "replan.page"), "Page"),
    "plan.torchrec_plan": "TorchRec plan",
}


class UnknownParameterError(NeuroShardError):
    """A parameter does not exist or has an impossible value, or `lab` is changed."""


class ParameterHooks:
    """Refuse parameters that do not exist, and values that contradict other parameters or files.

    Kedro has already validated the types of the groups of parameters that the run reads.
    """

    @hook_impl(tryfirst=True)
    def after_catalog_created(self, parameters: dict[str, Any]) -> None:
        """Refuse wrong types, unknown parameters, changed `lab` values, and a wrong `search.torchrec.sharder`.

        Raises:
            UnknownParameterError: the message names the parameter, its value and the remedy.
        """
        inputs = {name for pipeline in set(pipelines) for name in pipelines[pipeline].inputs()}
        read = {name.removeprefix("params:") for name in inputs if name.startswith("params:")}
        parameters = parameters["parameters"]
        _refuse_wrong_values(parameters, read)
        _refuse_unknown_parameters(parameters, read | RUNTIME_PARAMETERS)
        _refuse_changed_lab(parameters["lab"])
        _refuse_unknown_export(parameters["search"])


def _refuse_wrong_values(parameters: dict[str, Any], read: set[str]) -> None:
    """Refuse wrong types of the parameters in `_TYPES`, and single values for other parameters, which are groups."""
    paths = [name.split(".") for name in {"lab", *read} - set(_TYPES)]
    groups = {".".join(path[: depth + 1]): _GROUP for path in paths for depth in range(len(path))}
    for name, adapter in sorted((groups | _TYPES).items(), key=itemgetter(0)):  # a group precedes what is in it
        *outer, last = name.split(".")
        holder = reduce(lambda values, key: values.get(key, {}), outer, parameters)
        try:
            adapter.validate_python(holder[last], strict=True) if last in holder else None
        except ValidationError as problem:
            told = NO_GROUP if adapter is _GROUP else problem.errors()[0]["msg"].replace("Input should be", "must be")
            raise UnknownParameterError(f"parameter {name}={holder[last]!r}: {told}") from problem


def _refuse_unknown_parameters(parameters: dict[str, Any], known: set[str]) -> None:
    for given, value in _leaves(parameters).items():
        if not any(given == name or given.startswith(f"{name}.") or name.startswith(f"{given}.") for name in known):
            hint = _nearest(given, known) or "; conf/base/parameters_*.yml lists all parameters"
            raise UnknownParameterError(f"parameter {given}={value!r} does not exist{hint}")


def _refuse_changed_lab(lab: dict[str, Any]) -> None:
    """Refuse values of `lab` (modelled hardware) that differ from its file, which the package reads without Kedro."""
    shipped = _leaves(lab_values())
    for given, value in _leaves(lab).items():
        if given not in shipped or shipped[given] != value:
            remedy = "environments and --params cannot change the lab; edit conf/base/parameters_lab.yml"
            raise UnknownParameterError(f"parameter lab.{given}={value!r}: {remedy}")


def _nearest(given: str, known: set[str]) -> str:
    """`; did you mean 'x'?` for the first unknown part of a dotted name; empty if no known name is similar."""
    names, parts = [name.split(".") for name in known], given.split(".")
    for depth in range(len(parts)):
        siblings = {".".join(name[: depth + 1]) for name in names if name[:depth] == parts[:depth]}
        start = ".".join(parts[: depth + 1])
        if start not in siblings:
            return did_you_mean(start, siblings)
    return ""


def _refuse_unknown_export(search: dict[str, Any]) -> None:
    """Refuse to export plans for TorchRec if their sharder does not take part in the search."""
    # The parameters are typed if the run reads them, and plain dicts otherwise.
    exported, sharders = dict(search["torchrec"])["sharder"], dict(search["contest"])["sharders"]
    if exported not in sharders:
        known = f"search.contest.sharders: {', '.join(sharders)}"
        raise UnknownParameterError(f"parameter search.torchrec.sharder={exported!r} must be one of {known}")


def _leaves(parameters: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """All values of nested parameters by dotted name."""
    leaves: dict[str, Any] = {}
    for key, value in parameters.items():
        nested = isinstance(value, dict) and value
        leaves |= _leaves(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return leaves


class LineageHooks:
    """Record the versions of every run in `data/08_reporting/lineage/<run id>.json`.

    Kedro versions every dataset separately and does not record the input versions that an output was made from.
    """

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Determine the versions that will be read and written, and pass them to the nodes."""
        catalog.save(LINEAGE_DATASET, lineage(run_params, pipeline, catalog))

    @hook_impl
    def after_pipeline_run(self, run_params: dict[str, Any], catalog: CatalogProtocol) -> None:
        """Write the record of a completed run."""
        write_lineage(catalog, run_params["run_id"], "completed")

    @hook_impl
    def on_pipeline_error(self, run_params: dict[str, Any], catalog: CatalogProtocol) -> None:
        """Write the record of a failed run too, because some of its outputs may be the newest versions now."""
        write_lineage(catalog, run_params["run_id"], "failed")


def write_lineage(catalog: CatalogProtocol, run_id: str, status: str) -> None:
    """Write `<lineage folder>/<run id>.json` atomically."""
    folder = Path(catalog.load("lineage_folder"))
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{run_id}.json") as staged:
        staged.write_text(json.dumps({"status": status, **catalog.load(LINEAGE_DATASET)}, indent=2))


class ProgressHooks:
    """Announce how long a run takes, and log one line per node; long nodes also show a progress bar."""

    def __init__(self) -> None:
        self._announced_minutes: float | None = None
        self._start_s, self._num_started, self._num_nodes = time.monotonic(), 0, 0

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Announce the duration if `expected_seconds` has one for a stage, and `--params` does not change any stage."""
        stages = {tag for node in pipeline.nodes for tag in node.tags}
        parameters = catalog.load("parameters") if stages.isdisjoint(run_params["runtime_params"] or ()) else {}
        expected_s = {name: s for name, s in (parameters.get("expected_seconds") or {}).items() if name in stages}
        budgeted_s = parameters.get("budgeted_seconds") or {}
        self._start_s, self._num_started, self._num_nodes = time.monotonic(), 0, len(pipeline.nodes)
        self._announced_minutes = estimate_minutes(expected_s, budgeted_s, slowdown()) if expected_s else None
        if self._announced_minutes:
            _LOGGER.info(announcement(self._announced_minutes, "this run"))

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Log the name of the node, which starts with the name of its stage, and the time since the run started."""
        self._num_started += 1
        _LOGGER.info("[%d/%d, %s] %s", self._num_started, self._num_nodes, self._time_so_far(), node.name)

    @hook_impl
    def after_pipeline_run(self) -> None:
        """Compare the duration with the announced one."""
        if self._announced_minutes:
            _LOGGER.info("the run took %s minutes", self._time_so_far())

    def _time_so_far(self) -> str:
        minutes, seconds = divmod(round(time.monotonic() - self._start_s), 60)
        so_far = f"{minutes}:{seconds:02d}"
        return f"{so_far} of about {self._announced_minutes:g}" if self._announced_minutes else so_far


class ThreadHooks:
    """Give the run's own process one thread; the parameters `threads` set the threads of workers that measure.

    The matrices of training and search are small. Two threads gain little on quiet cores, and on cores that other
    programs use they wait for each other: a training of 160 samples then took seven times as long as with one thread.
    """

    def __init__(self) -> None:
        self._torch_threads: int | None = None
        self._limits: threadpool_limits | None = None

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Set the number of threads of OpenMP and BLAS to one, and of torch, which no node of `plan` uses."""
        if {tag for node in pipeline.nodes for tag in node.tags} != {"plan"}:
            import torch  # imported late: this takes as long as many a plan

            self._torch_threads = torch.get_num_threads()
            torch.set_num_threads(1)
        self._limits = threadpool_limits(limits=1)

    @hook_impl
    def after_pipeline_run(self) -> None:
        """Restore the numbers of threads, because a notebook goes on after a run, whether or not it failed."""
        if self._limits is not None:
            self._limits.restore_original_limits()
        if self._torch_threads is not None:
            import torch

            torch.set_num_threads(self._torch_threads)

    on_pipeline_error = after_pipeline_run


class SummaryHooks:
    """Print the results of the run: tables, the plan's explanation, and the paths of report and TorchRec plan."""

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Print the results that this run has made."""
        made = pipeline.all_outputs()
        if "search.summary" in made:
            click.echo("\n" + summary_table(catalog.load("search.summary")))
        for name in (each for each in _TEXTS if each in made):
            click.echo("\n" + catalog.load(name))
        for name, title in _FILE_DATASETS.items():
            if name in made:
                click.echo(f"\n{title}: {Path(catalog[name]._get_load_path())}")


def lineage(run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> dict[str, Any]:
    """The record of a run, ready for JSON; `inputs` and `outputs` map versioned datasets to versions."""
    outputs = _versioned(pipeline.all_outputs(), catalog)
    inputs = _versioned(pipeline.inputs(), catalog)
    return {
        "run_id": run_params["run_id"],
        "project_version": __version__,
        "pipelines": run_params.get("pipeline_names") or ["__default__"],
        "env": run_params.get("env") or "base",
        "runtime_params": run_params.get("runtime_params") or {},
        "inputs": {name: dataset.resolve_load_version() for name, dataset in inputs.items() if dataset.exists()},
        "outputs": {name: dataset.resolve_save_version() for name, dataset in outputs.items()},
    }


def _versioned(names: set[str], catalog: CatalogProtocol) -> dict[str, AbstractVersionedDataset]:
    datasets = {name: catalog.get(name) for name in sorted(names) if not name.startswith("params:")}
    return {
        name: dataset
        for name, dataset in datasets.items()
        if isinstance(dataset, AbstractVersionedDataset) and dataset._version is not None
    }
