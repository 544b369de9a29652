"""Stage report: draws the figures and writes the HTML page."""

from neuroshard_pipeline.pipelines.report.pipeline import create_pipeline

__all__ = ["create_pipeline"]
