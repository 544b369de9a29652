"""NeuroShard, "Pre-train and Search", as a Kedro project: sharding plans for embedding tables in seconds."""

__version__ = "0.1.0"
