"""Imported by the fork server: its processes need not load the compiled search (0.5 s) or parse parameters (0.04 s)."""

from neuroshard_pipeline.search.greedy_runs import compile_ahead
from neuroshard_pipeline.search.params import default_values

compile_ahead()
default_values()
