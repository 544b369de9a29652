"""Kedro's hook that runs all checks, and the error that lists their problems."""

from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.pipelines.preflight.data import input_problems, output_problems
from neuroshard_pipeline.pipelines.preflight.nodes import node_problems
from neuroshard_pipeline.pipelines.preflight.run import PlannedRun


class PreflightError(NeuroShardError):
    """A run cannot succeed; the message lists every problem with its remedy."""


class PreflightHooks:
    """Refuse a run that cannot succeed, before its first node."""

    @hook_impl(tryfirst=True)
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Run all checks.

        Raises:
            PreflightError: the checks found problems.
        """
        found = problems_of(PlannedRun(pipeline, catalog, run_params))
        if len(found) == 1:
            raise PreflightError(found[0])
        if found:
            raise PreflightError("\n  - ".join([f"this run cannot succeed, for {len(found)} reasons:", *found]))


def problems_of(run: PlannedRun) -> list[str]:
    """All problems of a run, each once."""
    return list(dict.fromkeys([*input_problems(run), *node_problems(run), *output_problems(run)]))
