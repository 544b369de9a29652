"""Stage augment: a pool of embedding tables becomes samples to measure and tasks to solve."""

from neuroshard_pipeline.pipelines.augment.pipeline import create_pipeline

__all__ = ["create_pipeline"]
