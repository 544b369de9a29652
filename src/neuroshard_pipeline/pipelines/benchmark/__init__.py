"""Compares all sharders by measured cost on the same suites of tasks: `kedro run --pipeline benchmark`."""

from neuroshard_pipeline.pipelines.benchmark.pipeline import create_pipeline

__all__ = ["create_pipeline"]
