"""Kedro settings of the project."""

from neuroshard_pipeline.hooks import LineageHooks, ParameterHooks, ProgressHooks, SummaryHooks

HOOKS = (ParameterHooks(), LineageHooks(), ProgressHooks(), SummaryHooks())
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # An environment or conf/local may change one nested parameter without repeating its neighbours.
    "merge_strategy": {"parameters": "soft", "globals": "soft"},
}
