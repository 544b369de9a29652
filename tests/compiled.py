"""Imported by the fork server: compiled functions of a search, which each of its processes would load in half a second."""

from neuroshard_pipeline.search.greedy_runs import compile_ahead

compile_ahead()
