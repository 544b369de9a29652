"""Checks, before the first node of a run starts, what the run will use, and reports all problems in one error.

- `hook`: the Kedro hook that runs the checks, and the error that it raises
- `run`: what the checks know of a run: nodes, typed parameters, and where parameters were set
- `data`: datasets that are missing or damaged, folders that cannot be written
- `measuring`: kernels, GPUs, memory and optional dependencies that measurements need
- `nodes`: files, sharders and recordings of compute costs that the parameters of each node name

A check yields one text per problem and takes milliseconds. It refuses only runs that cannot succeed.
"""

from neuroshard_pipeline.pipelines.preflight.hook import PreflightError, PreflightHooks, problems_of

__all__ = ["PreflightError", "PreflightHooks", "problems_of"]
