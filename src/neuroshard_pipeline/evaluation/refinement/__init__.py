"""Refinement: measure what a search chooses, add it to the training set, retrain; and judge what that was worth.

- `params`: `RefineParams`, `JudgingParams`
- `candidates`: the shard sets and collectives that best plans and their runners-up contain
- `campaigns`: new samples measured together with anchors (`measurement.anchors`)
- `training_set`: samples with their costs, and what joins them
- `rounds`: search → measure → add → retrain, over and over
- `predictions`: of models beside measurements
- `judging`: plans of two pairs of cost models on fresh tasks, measured in one campaign
- `summary`: errors on chosen shards and costs of plans, before and after, with their spread
"""

from neuroshard_pipeline.evaluation.refinement.campaigns import Campaigns, require_measuring
from neuroshard_pipeline.evaluation.refinement.judging import Judged, judge_plans
from neuroshard_pipeline.evaluation.refinement.params import JudgingParams, RefineParams
from neuroshard_pipeline.evaluation.refinement.rounds import Refined, Trained, refine_models, train_both
from neuroshard_pipeline.evaluation.refinement.summary import AFTER, BEFORE, summarise_refinement
from neuroshard_pipeline.evaluation.refinement.training_set import TrainingSet

__all__ = [
    "AFTER",
    "BEFORE",
    "Campaigns",
    "Judged",
    "JudgingParams",
    "RefineParams",
    "Refined",
    "Trained",
    "TrainingSet",
    "judge_plans",
    "refine_models",
    "require_measuring",
    "summarise_refinement",
    "train_both",
]
