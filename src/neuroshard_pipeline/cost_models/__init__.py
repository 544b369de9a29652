"""Cost models predict costs in ms: of a rank's lookups, of a collective, and of the other parts of a training step.

Modules for prediction, which need no torch (it is imported when a training function is first used):

- `models`: all cost models of one machine, as a user loads them
- `compute_features`: inputs of the compute cost model; `compute`: its formula, predictions and file format
- `comm_features`, `comm`: the same for the communication cost model, which predicts the all-to-all of pooled rows
- `step`: the step cost model, which predicts the input dist, the work of TorchRec's module, and reductions
- `reductions`: costs of reduce_scatter, all_gather and all_reduce, interpolated between measured ones
- `network`, `intervals`: what compute and communication cost model share; `checkpoint`: files without pickles
- `training_range`, `caveats`: sentences about predictions that are doubtful or modelled
- `shipped`: the models that the package ships

Modules for training:

- `params`: parameters; `measured`: measured samples, their split and held-out predictions; `metrics`: accuracy
- `compute_training`, `comm_training`: from frames to a trained model
- `fitting`: the training loop; `initial_weights`: where it starts
- `calibration`: prediction intervals; `group_accuracy`: accuracy of the compute cost model by group of samples
- `reduction_fitting`: from measured reductions to `reductions`; `modelled_step`: a step cost model from formulas
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.models import CostModels, load_cost_models
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams

if TYPE_CHECKING:
    from neuroshard_pipeline.cost_models.comm_training import train_comm_model
    from neuroshard_pipeline.cost_models.compute_training import train_compute_model
    from neuroshard_pipeline.cost_models.group_accuracy import accuracy_by_group
    from neuroshard_pipeline.cost_models.reduction_fitting import fit_reductions

__all__ = [
    "CommCostModel",
    "CommTrainParams",
    "ComputeCostModel",
    "ComputeTrainParams",
    "CostModels",
    "accuracy_by_group",
    "fit_reductions",
    "load_cost_models",
    "train_comm_model",
    "train_compute_model",
]

_LATER = {
    "accuracy_by_group": "group_accuracy",
    "fit_reductions": "reduction_fitting",
    "train_comm_model": "comm_training",
    "train_compute_model": "compute_training",
}


def __getattr__(name: str) -> Any:
    """Import a training function when it is first used; most of them need torch."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
