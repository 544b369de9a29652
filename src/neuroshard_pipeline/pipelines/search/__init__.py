"""Stage search: solves the tasks with every sharder, and compares the plans by predicted and measured cost."""

from neuroshard_pipeline.pipelines.search.pipeline import create_pipeline

__all__ = ["create_pipeline"]
