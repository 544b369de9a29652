"""Stage train: measured costs become cost models."""

from neuroshard_pipeline.pipelines.train.pipeline import create_pipeline

__all__ = ["create_pipeline"]
