"""Trains a DLRM under several sharders' plans: `kedro run --pipeline train_check`."""

from neuroshard_pipeline.pipelines.train_check.pipeline import create_pipeline

__all__ = ["create_pipeline"]
