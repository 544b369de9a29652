"""Cost models: from the shards of a rank, or the volumes of a collective, to milliseconds.

features        what a model sees of a shard
architectures   the formulas, for NumPy and torch alike
compute, comm   the two models: predict, save, load
models          both together, as a user holds them
training, training_comm, fitting, initialise, splits    how they are fitted (these import torch)
baselines, metrics    what they are judged by
checkpoint      files without pickles
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
