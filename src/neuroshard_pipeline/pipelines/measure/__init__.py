"""Stage measure: runs the samples on real kernels and real collectives."""

from neuroshard_pipeline.pipelines.measure.pipeline import create_pipeline

__all__ = ["create_pipeline"]
