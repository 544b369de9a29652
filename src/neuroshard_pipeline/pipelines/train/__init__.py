"""Stage train: fits the cost models to measured costs."""

from neuroshard_pipeline.pipelines.train.pipeline import create_pipeline

__all__ = ["create_pipeline"]
