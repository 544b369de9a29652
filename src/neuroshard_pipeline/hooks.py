"""Kedro hooks: which versions went into a run and which came out of it, and the table that a person wants to see."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click
from kedro.framework.hooks import hook_impl
from kedro.framework.project import pipelines
from kedro.io import AbstractVersionedDataset, CatalogProtocol
from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline import __version__
from neuroshard_pipeline.datasets.atomic import commit, staged_path
from neuroshard_pipeline.errors import NeuroShardError, did_you_mean
from neuroshard_pipeline.report import summary_table

#: The catalog entry that nodes read to learn the versions of the data in front of them.
LINEAGE_DATASET = "lineage"
#: Runtime parameters that configuration files refer to.
RUNTIME_PARAMETERS = {"data_root", "local_world_size", "torchrun_endpoint"}
_SUMMARY_DATASET = "search.summary"
_REPORT_DATASET = "search.report"
_EXPLANATION_DATASET = "plan.explanation"
_TORCHREC_DATASET = "plan.torchrec_plan"
_TABLE_DATASETS = ("train_check.table",)
_BENCH_TABLE_DATASET = "benchmark.table"
_BENCH_REPORT_DATASET = "benchmark.report"


class MissingVersionError(NeuroShardError):
    """A run starts from a dataset that no earlier run has written."""


class UnknownParameterError(NeuroShardError):
    """A parameter that no pipeline reads: a slip of the pen that would otherwise go unnoticed."""


class ParameterHooks:
    """Refuse parameters that nothing reads; the typed ones are checked by Kedro before."""

    @hook_impl
    def before_pipeline_run(self, catalog: CatalogProtocol) -> None:
        """Compare what was given with what the registered pipelines read.

        Raises:
            UnknownParameterError: names the parameter and the closest one that exists.
        """
        parameters = catalog.load("parameters")
        refuse_unknown_parameters(parameters, set(pipelines))
        refuse_export_of_nobody(parameters["search"]["contest"], parameters["search"]["torchrec"])


def refuse_unknown_parameters(parameters: dict[str, Any], pipeline_names: set[str]) -> None:
    """Raise `UnknownParameterError` for the first parameter that none of the registered pipelines reads."""
    read = {
        name.removeprefix("params:")
        for pipeline in pipeline_names
        for name in pipelines[pipeline].inputs()
        if name.startswith("params:")
    }
    known = read | RUNTIME_PARAMETERS
    for given in _leaves(parameters):
        if not any(given == name or given.startswith(f"{name}.") or name.startswith(f"{given}.") for name in known):
            hint = did_you_mean(given, known) or "."
            raise UnknownParameterError(
                f"parameter {given!r} is read by no pipeline{hint} All parameters stand in conf/base/parameters_*.yml."
            )


def refuse_export_of_nobody(contest: Any, torchrec: Any) -> None:
    """Raise where the plans of a sharder shall be exported that is not among those that plan."""
    exported, sharders = _value(torchrec, "sharder"), _value(contest, "sharders")
    if exported not in sharders:
        raise UnknownParameterError(
            f"search.torchrec.sharder {exported!r} is not among search.contest.sharders: {', '.join(sharders)}"
        )


def _value(params: Any, name: str) -> Any:
    """A value of typed parameters, or of plain ones where the run does not read them."""
    return params[name] if isinstance(params, dict) else getattr(params, name)


def _leaves(parameters: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of all values of nested parameters."""
    names = []
    for key, value in parameters.items():
        names += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]
    return names


class LineageHooks:
    """Record the versions of every run in `data/08_reporting/lineage/<run id>.json`.

    Kedro versions datasets one by one and keeps no record of which version was made from which.
    """

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Resolve the versions that will be read, and offer the record to the nodes.

        Raises:
            MissingVersionError: a dataset that the run starts from has no version, or not the pinned one.
        """
        _refuse_missing_inputs(pipeline, catalog)
        record = lineage(run_params, pipeline, catalog)
        catalog.save(LINEAGE_DATASET, record)

    @hook_impl
    def after_pipeline_run(self, run_params: dict[str, Any], catalog: CatalogProtocol) -> None:
        """Write the record of a completed run."""
        write_lineage(catalog, run_params["run_id"], "completed")

    @hook_impl
    def on_pipeline_error(self, run_params: dict[str, Any], catalog: CatalogProtocol) -> None:
        """Write the record of a failed run as well: some of its outputs may be the newest versions now."""
        write_lineage(catalog, run_params["run_id"], "failed")


def write_lineage(catalog: CatalogProtocol, run_id: str, status: str) -> None:
    """Write `<lineage folder>/<run id>.json`, all of it or nothing."""
    folder = Path(catalog.load("lineage_folder"))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{run_id}.json"
    staged = staged_path(target)
    try:
        staged.write_text(json.dumps({"status": status, **catalog.load(LINEAGE_DATASET)}, indent=2))
        commit(staged, target)
    finally:
        staged.unlink(missing_ok=True)


class ProgressHooks:
    """Say which node runs, in one line; long nodes have progress bars of their own."""

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Log the node's name, stage first."""
        logging.getLogger(__name__).info(node.name)


class SummaryHooks:
    """Print what a person ran the pipeline for: the table of sharders, the report's place, the plan in words."""

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Print only when this run made them."""
        made = pipeline.all_outputs()
        if _SUMMARY_DATASET in made:
            click.echo("\n" + summary_table(catalog.load(_SUMMARY_DATASET)))
        if _REPORT_DATASET in made:
            click.echo(f"\nReport: {Path(catalog[_REPORT_DATASET]._get_load_path())}")
        if _EXPLANATION_DATASET in made:
            click.echo("\n" + catalog.load(_EXPLANATION_DATASET))
            click.echo(f"\nTorchRec plan: {Path(catalog[_TORCHREC_DATASET]._get_load_path())}")
        for table in _TABLE_DATASETS:
            if table in made:
                click.echo("\n" + catalog.load(table))
        if _BENCH_TABLE_DATASET in made:
            click.echo("\n" + catalog.load(_BENCH_TABLE_DATASET))
            click.echo(f"\nReport: {Path(catalog[_BENCH_REPORT_DATASET]._get_load_path())}")


def lineage(run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> dict[str, Any]:
    """What a run reads and writes: `{run_id, project_version, pipelines, env, inputs, outputs, ...}`.

    Args:
        run_params: Kedro's record of the run.
        pipeline: the nodes that will run.
        catalog: where versions are resolved.

    Returns:
        A JSON-ready record; `inputs` and `outputs` map versioned datasets to versions.
    """
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


def _refuse_missing_inputs(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    for name, dataset in _versioned(pipeline.inputs(), catalog).items():
        pinned = dataset._version.load if dataset._version else None
        if dataset.exists() or (getattr(dataset, "is_optional", False) and not pinned):
            continue
        if pinned:
            known = ", ".join(dataset.list_versions(full_path=False)[:5]) or "none"
            raise MissingVersionError(
                f"{name} has no version {pinned!r} in {dataset._filepath}; newest versions: {known}"
            )
        raise MissingVersionError(
            f"{name} has no version in {dataset._filepath} yet; make one with `kedro run --pipeline {_maker(name)}`, "
            "or everything that a search needs with `kedro run --pipeline pretrain`"
        )


def _maker(name: str) -> str:
    """The smallest registered pipeline that makes a dataset."""
    makers = [pipeline for pipeline in set(pipelines) if name in pipelines[pipeline].all_outputs()]
    return min(makers, key=lambda pipeline: len(pipelines[pipeline].nodes), default=name.partition(".")[0])
