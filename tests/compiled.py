"""Imported by the fork server: each of its processes would load the compiled search in half a second."""

from neuroshard_pipeline.search.greedy_runs import compile_ahead

compile_ahead()
