"""Kedro settings of the project."""

import atexit
import gc

from neuroshard_pipeline.hooks import LineageHooks, ParameterHooks, ProgressHooks, SummaryHooks, ThreadHooks
from neuroshard_pipeline.pipelines.preflight import PreflightHooks
from neuroshard_pipeline.run_lock import LockHooks

_KINDS = (LockHooks, PreflightHooks, ParameterHooks, LineageHooks, ProgressHooks, ThreadHooks, SummaryHooks)
HOOKS = tuple(kind() for kind in _KINDS)
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # With "soft" merging, an environment or conf/local may change one nested parameter without repeating the others.
    "merge_strategy": {"parameters": "soft", "globals": "soft"},
}

# Most objects of a run live until its end. It searches for garbage less often, and not when it ends.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)
