"""Compares sharders on suites of tasks, by measured or predicted cost: `kedro run --pipeline benchmark`."""

from neuroshard_pipeline.pipelines.benchmark.pipeline import create_pipeline

__all__ = ["create_pipeline"]
