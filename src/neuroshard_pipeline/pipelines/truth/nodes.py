"""Nodes of the truth pipeline."""

import pandas as pd

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.report import part_table, summary_table
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.torchrec_bridge.truth.params import VariantParams
from neuroshard_pipeline.torchrec_bridge.truth.variants import with_variants


def add_variants(
    plans: tuple[Plan, ...], attempts: pd.DataFrame, models: CostModels, params: VariantParams
) -> tuple[tuple[Plan, ...], pd.DataFrame]:
    """Add variants of one sharder's plans with other sharding types, and the attempts at them."""
    found = with_variants(Solutions(plans, attempts), params.of, models)
    return found.plans, found.attempts


def tabulate_summary(summary: dict, plan_costs: pd.DataFrame) -> str:
    """The summary as tables for the terminal: sharders, and parts of a step."""
    return "\n\n".join([part_table(plan_costs), summary_table(summary)])
