"""Cost models predict costs in ms: of a rank's lookups, of a collective, and of the other parts of a training step.

Modules for prediction, which need no torch:

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

from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.models import CostModels, load_cost_models
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams

__all__ = [
    "CommCostModel",
    "CommTrainParams",
    "ComputeCostModel",
    "ComputeTrainParams",
    "CostModels",
    "load_cost_models",
]
