"""Stage report: the figures and the HTML page."""

from neuroshard_pipeline.pipelines.report.pipeline import create_pipeline

__all__ = ["create_pipeline"]
