"""The error of the training check."""

from neuroshard_pipeline.errors import NeuroShardError


class TrainCheckError(NeuroShardError):
    """A training check cannot run, a rank of it failed, or its plans trained to different losses."""
