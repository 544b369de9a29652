"""Nodes of the train_policies pipeline."""

from functools import partial
from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.sharders.policies.params import PolicyTrainParams
from neuroshard_pipeline.sharders.policies.policy import Policy
from neuroshard_pipeline.sharders.policies.tasks import PolicyTasks

Json = dict[str, Any]


def train_autoshard(
    tasks: PolicyTasks, models: CostModels, memory: MemoryModel, params: PolicyTrainParams, lineage: Json
) -> tuple[Policy, pd.DataFrame]:
    """Train AutoShard's policy."""
    return _train("autoshard", tasks, models, memory, params, lineage)


def train_dreamshard(
    tasks: PolicyTasks, models: CostModels, memory: MemoryModel, params: PolicyTrainParams, lineage: Json
) -> tuple[Policy, pd.DataFrame]:
    """Train DreamShard's policy."""
    return _train("dreamshard", tasks, models, memory, params, lineage)


def tabulate_progress(*of_policies: pd.DataFrame) -> pd.DataFrame:
    """Progress of the training of all policies, step by step."""
    return pd.concat(of_policies, ignore_index=True)


def _train(
    kind: str, tasks: PolicyTasks, models: CostModels, memory: MemoryModel, params: PolicyTrainParams, lineage: Json
) -> tuple[Policy, pd.DataFrame]:
    from neuroshard_pipeline.sharders.policies.training import train_policy  # imported late, because it imports torch

    versions = {name: version for name, version in lineage["inputs"].items() if name.endswith("_cost_model")}
    provenance = {
        "cost_model_versions": versions,
        "hardware": models.compute.provenance.get("hardware"),
        "run_id": lineage["run_id"],
    }
    with_bar = partial(tqdm, desc=kind, unit=" steps", disable=None)
    return train_policy(kind, tasks, models, memory, params, provenance, with_bar)
