"""Pipeline train_policies: trains the policies of AutoShard and DreamShard on the predictions of the cost models."""

from neuroshard_pipeline.pipelines.train_policies.pipeline import create_pipeline

__all__ = ["create_pipeline"]
