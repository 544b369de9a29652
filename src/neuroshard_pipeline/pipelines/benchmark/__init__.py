"""All sharders on the same suites of tasks, compared by measured cost: `kedro run --pipeline benchmark`."""

from neuroshard_pipeline.pipelines.benchmark.pipeline import create_pipeline

__all__ = ["create_pipeline"]
