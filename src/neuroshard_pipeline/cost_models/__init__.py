"""Cost models: from the shards of a rank, or the volumes of a collective, to milliseconds.

- `features`, `comm_features`: what a model sees of a shard, and of a collective
- `architectures`: the formulas, for NumPy and torch alike
- `compute`, `comm`: the models (predict, save, load); `models`: both together, as a user holds them
- `training`, `training_comm`, `fitting`, `initialise`, `splits`: how they are fitted
- `training_range`: what they were trained on; `baselines`, `metrics`, `groups`: what they are judged by
- `checkpoint`: files without pickles

Predicting needs NumPy alone; whatever imports torch is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.models import CostModels, load_cost_models
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams

if TYPE_CHECKING:
    from neuroshard_pipeline.cost_models.groups import judge_compute_model
    from neuroshard_pipeline.cost_models.training import train_compute_model
    from neuroshard_pipeline.cost_models.training_comm import train_comm_model

__all__ = [
    "CommCostModel",
    "CommTrainParams",
    "ComputeCostModel",
    "ComputeTrainParams",
    "CostModels",
    "judge_compute_model",
    "load_cost_models",
    "train_comm_model",
    "train_compute_model",
]

_NEEDS_TORCH = {"judge_compute_model": "groups", "train_compute_model": "training", "train_comm_model": "training_comm"}


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use."""
    if name in _NEEDS_TORCH:
        return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
