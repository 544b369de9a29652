"""Nodes of the refine pipeline. A run of it is one round.

The first campaign (stage measure) measured the first training samples. Some of them, the anchors, are measured again.
"""

import logging

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.augment import ShardingTaskParams
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.anchors import AnchorParams, choose_anchors
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.refinement import (
    NewSamples,
    RefineParams,
    appended,
    candidate_plans,
    measure_new,
    next_round,
)
from neuroshard_pipeline.measurement import (
    CommCampaign,
    CommMeasureParams,
    ComputeCampaign,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
)
from neuroshard_pipeline.pipelines.training_data import REFINED
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables import tasks_from_frame

_LOGGER = logging.getLogger(__name__)


def state_campaigns(
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    seed: int,
    recording: RecordingParams,
    topology: TopologyParams,
) -> Campaigns:
    """Campaigns with the parameters of the measure stage. The backend `recorded` is refused."""
    campaigns = Campaigns(ComputeCampaign(compute, seed, recording), CommCampaign(comm, seed, topology))
    campaigns.require_measuring()
    return campaigns


def draw_tasks(
    pool: pd.DataFrame, like: ShardingTaskParams, params: RefineParams, known: MeasuredSamples
) -> pd.DataFrame:
    """Draw the tasks of this round, with a seed that no other round has."""
    return params.draw_tasks(pool, like, next_round(known))


def find_new_samples(
    tasks: pd.DataFrame,
    models: CostModels,
    params: RefineParams,
    settings: SharderSettings,
    first: MeasuredSamples,
    known: MeasuredSamples,
) -> NewSamples:
    """Search for plans, and choose samples of these plans that the models were not trained on (`NewSamples.of`)."""
    searched = tqdm(tasks_from_frame(tasks), desc="search", unit=" tasks", disable=None)
    plans = candidate_plans(searched, models, params, settings)
    found = NewSamples.of(plans, first.sample_ids | known.sample_ids, params)
    _LOGGER.info(
        "from %d plans, %d new compute samples and %d new communication samples are measured",
        len(plans),
        len(found.compute),
        len(found.comm),
    )
    return found


def measure(samples: NewSamples, campaigns: Campaigns, first: MeasuredSamples, params: AnchorParams) -> MeasuredSamples:
    """Measure the new samples together with anchors, and remove the machine's drift from their costs."""
    return measure_new(samples, first.table_pool, campaigns, choose_anchors(first, params))


def append(known: MeasuredSamples, measured: MeasuredSamples, first: MeasuredSamples) -> dict[str, pd.DataFrame]:
    """Append the samples of this round to those of earlier rounds. Returns one frame per name in `REFINED`."""
    return dict(zip(REFINED, appended(known, measured, first).frames(), strict=True))
