"""Every sharder on the same suites of tasks, judged by measurement: `kedro run --pipeline benchmark`."""

from neuroshard_pipeline.pipelines.benchmark.pipeline import create_pipeline

__all__ = ["create_pipeline"]
