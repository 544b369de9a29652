"""Times TorchRec's embedding module under several sharders' plans: `kedro run --pipeline truth`."""

from neuroshard_pipeline.pipelines.truth.pipeline import create_pipeline

__all__ = ["create_pipeline"]
