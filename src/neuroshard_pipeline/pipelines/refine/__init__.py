"""Measures samples of the plans that the search chooses, and trains on them: `kedro run --pipeline refine`."""

from neuroshard_pipeline.pipelines.refine.pipeline import create_pipeline

__all__ = ["create_pipeline"]
