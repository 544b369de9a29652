"""Stage search: plans of every sharder for the sharding tasks, compared by predicted and measured cost."""

from neuroshard_pipeline.pipelines.search.pipeline import create_pipeline

__all__ = ["create_pipeline"]
