"""Judges a plan with tiers (blocks of rows by popularity) on another day's ids: `kedro run --pipeline drift`."""

from neuroshard_pipeline.pipelines.drift.pipeline import create_pipeline

__all__ = ["create_pipeline"]
