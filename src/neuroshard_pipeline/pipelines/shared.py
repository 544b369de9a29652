"""Nodes that several pipelines share."""

from kedro.pipeline import Node

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.sharders.base import RivalParams, SharderSettings

#: Datasets of the stage train that `pair_models` reads, by the names that they have inside a namespaced pipeline.
TRAINED_MODELS = {"compute_cost_model": "train.compute_cost_model", "comm_cost_model": "train.comm_cost_model"}

#: Parameters of the stage search that `set_up_sharders` reads.
SHARDER_PARAMETERS = ("params:neuroshard", "params:neuroshard_plus", "params:memory", "params:rivals")

#: The same for a pipeline outside of the namespace `search`.
SEARCH_PARAMETERS = {name: name.replace("params:", "params:search.") for name in SHARDER_PARAMETERS}


def pair_models(compute: ComputeCostModel, comm: CommCostModel) -> CostModels:
    """Pair the compute and the communication cost model."""
    return CostModels(compute, comm)


def set_up_sharders(
    search: SearchParams, local_search: LocalSearchParams, memory: MemoryModel, rivals: RivalParams
) -> SharderSettings:
    """Collect the settings of all sharders."""
    return SharderSettings(search, local_search, memory, rivals)


def models_node() -> Node:
    """`compute_cost_model`, `comm_cost_model` → `models`."""
    return Node(pair_models, list(TRAINED_MODELS), "models", name="pair_models")


def sharder_settings_node() -> Node:
    """Parameters of the searches, of memory and of the rivals → `sharder_settings`."""
    return Node(set_up_sharders, list(SHARDER_PARAMETERS), "sharder_settings", name="set_up_sharders")
