"""Checks everything that a run will use before its first node starts, and reports all problems in one error.

- `hook`: Kedro's hook, and the error
- `run`: what the checks know of a run: nodes, typed parameters, and where parameters were set
- `data`: datasets that are missing or damaged, folders that cannot be written, free disk
- `measuring`: kernels, GPUs, memory and extras of measurements
- `nodes`: the checks of each node's other inputs: files, sharders, recordings

A check yields one text per problem and takes milliseconds. It refuses only runs that cannot succeed.
"""

from neuroshard_pipeline.pipelines.preflight.hook import PreflightError, PreflightHooks, problems_of

__all__ = ["PreflightError", "PreflightHooks", "problems_of"]
