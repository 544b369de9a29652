"""Nodes that several pipelines share."""

from kedro.pipeline import Node

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.cost_models.shipped import MODEL_NAMES, STEP_MODEL_NAME
from neuroshard_pipeline.sharders.base import SharderSettings

#: Datasets of the stage train that `models_node` reads, by the names that they have inside a namespaced pipeline. The
#: step cost model is optional; the dataset loads None if no run has made one.
TRAINED_MODELS = {name: f"train.{name}" for name in (*MODEL_NAMES, STEP_MODEL_NAME)}

#: Parameters of the stage search that `sharder_settings_node` reads.
SHARDER_PARAMETERS = ("params:neuroshard", "params:neuroshard_plus", "params:memory", "params:rivals")

#: Maps `SHARDER_PARAMETERS` to the project's parameters, for pipelines outside the namespace `search`.
SEARCH_PARAMETERS = {name: name.replace("params:", "params:search.") for name in SHARDER_PARAMETERS}


def models_node() -> Node:
    """`compute_cost_model`, `comm_cost_model`, `step_cost_model` → `models`."""
    return Node(CostModels, list(TRAINED_MODELS), "models", name="pair_models")


def sharder_settings_node() -> Node:
    """Parameters of the searches, of the memory model and of rivals (sharders of others) → `sharder_settings`."""
    return Node(SharderSettings, list(SHARDER_PARAMETERS), "sharder_settings", name="set_up_sharders")
