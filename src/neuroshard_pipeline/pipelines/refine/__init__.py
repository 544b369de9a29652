"""Cost models improved where a search uses them: `kedro run --pipeline refine`."""

from neuroshard_pipeline.pipelines.refine.pipeline import create_pipeline

__all__ = ["create_pipeline"]
