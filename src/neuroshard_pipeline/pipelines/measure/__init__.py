"""Stage measure: runs the samples on real kernels and collectives, or takes their costs from a recording or the lab."""

from neuroshard_pipeline.pipelines.measure.pipeline import create_pipeline

__all__ = ["create_pipeline"]
