"""Stage report: figures and the page that a person reads."""

from neuroshard_pipeline.pipelines.report.pipeline import create_pipeline

__all__ = ["create_pipeline"]
