"""Stage augment: draws samples to measure and tasks to solve from a pool of embedding tables."""

from neuroshard_pipeline.pipelines.augment.pipeline import create_pipeline

__all__ = ["create_pipeline"]
