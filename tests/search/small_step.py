"""A small step cost model for tests, and cost models with it, which price plans of every sharding type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.tables.samples import REDUCTIONS
from search.small_models import SmallCommModel, SmallComputeModel


@dataclass(frozen=True)
class SmallStepModels:
    compute: SmallComputeModel
    comm: SmallCommModel
    step: StepCostModel

    def caveats(self, task):  # noqa: ARG002
        return ()


def small_step_model(ms_per_mib: float = 0.2) -> StepCostModel:
    """A reduction costs 0.01 ms and, per MiB that a rank sends, `ms_per_mib`, or four times that between hosts.

    In every reduction of n ranks, a rank is assumed to send (n - 1) / n of its buffer; in a real all_reduce it sends
    twice as much.
    """
    sizes = 2.0 ** np.arange(10, 25)
    groups = {Group(2, 1): 1.0, Group(4, 1): 1.0, Group(8, 1): 1.0, Group(4, 2): 4.0, Group(8, 2): 4.0}
    curves = {
        group: Curve(sizes, 0.01 + factor * ms_per_mib * sizes / 2**20 * (1 - 1 / group.world_size))
        for group, factor in groups.items()
    }
    errors = dict.fromkeys(REDUCTIONS, 0.1)
    prices = {
        "input_dist": {"groups": 0.05, "features": 0.001, "bags": 0.5, "ids": 1.0, "sent_bags": 0.5, "sent_ids": 1.0},
        "module": {"groups": 0.05, "features": 0.001, "bags": 0.1, "pooled": 0.2, "returned": 0.2},
        "dense": {"gradients": 1.0},
    }
    reductions = ReductionCosts(dict.fromkeys(REDUCTIONS, curves), errors, errors)
    return StepCostModel({2: prices, 8: prices}, reductions)


def step_models(seed: int = 0, ms_per_mib: float = 0.2) -> SmallStepModels:
    return SmallStepModels(SmallComputeModel(seed), SmallCommModel(seed), small_step_model(ms_per_mib))
