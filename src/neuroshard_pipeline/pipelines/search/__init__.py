"""Stage search: sharding tasks become plans, judged by predicted and by measured cost."""

from neuroshard_pipeline.pipelines.search.pipeline import create_pipeline

__all__ = ["create_pipeline"]
