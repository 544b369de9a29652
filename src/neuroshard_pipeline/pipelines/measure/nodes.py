"""Nodes of the measure stage. A campaign measures many samples and saves records, from which a stopped run resumes."""

from collections.abc import Callable, Iterator

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.measurement import (
    CampaignSummary,
    CommCampaign,
    CommMeasureParams,
    ComputeCampaign,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
)
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.frames import comm_samples_from_frame, compute_samples_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.samples import CollectiveSample, ReductionSample
from neuroshard_pipeline.torchrec_bridge.step_costs.drawing import StepPlanParams, random_plans
from neuroshard_pipeline.torchrec_bridge.step_costs.measuring import measure_step_costs, measures_steps
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams

Records = dict[str, Callable[[], pd.DataFrame]]


def measure_compute(
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    params: ComputeMeasureParams,
    seed: int,
    done: Records,
) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure the part of the compute campaign that `done` lacks; Kedro saves every record as it is yielded."""
    campaign = ComputeCampaign(params, seed)
    for key, record in campaign.run(compute_samples_from_frame(samples, pool, settings), done):
        yield {key: record}


def reduce_compute_costs(
    records: Records,
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    params: ComputeMeasureParams,
    seed: int,
    recording: RecordingParams,
) -> tuple[pd.DataFrame, CampaignSummary]:
    """Forward and backward cost of every compute sample, and the summary of the campaign."""
    campaign = ComputeCampaign(params, seed, recording)
    measured = compute_samples_from_frame(samples, pool, settings)
    return campaign.costs(records, measured), campaign.summary(records, measured)


def measure_comm(
    samples: pd.DataFrame, reductions: pd.DataFrame, params: CommMeasureParams, seed: int, done: Records
) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure the part of the communication campaign that `done` lacks; Kedro saves each record as it is yielded."""
    both: list[CollectiveSample] = [*comm_samples_from_frame(samples), *_reduction_samples(reductions)]
    for key, record in CommCampaign(params, seed).run(both, done):
        yield {key: record}


def reduce_comm_costs(
    records: Records, samples: pd.DataFrame, params: CommMeasureParams, seed: int, topology: TopologyParams
) -> tuple[pd.DataFrame, CampaignSummary]:
    """Forward and backward cost of every rank of every communication sample, and the summary of the campaign."""
    campaign = CommCampaign(params, seed, topology)
    measured = comm_samples_from_frame(samples)
    return campaign.costs(records, measured), campaign.summary(records, measured)


def reduce_reduction_costs(
    records: Records, samples: pd.DataFrame, params: CommMeasureParams, seed: int, topology: TopologyParams
) -> pd.DataFrame:
    """One cost per reduction sample."""
    return CommCampaign(params, seed, topology).reduction_costs(records, _reduction_samples(samples))


def measure_steps(
    pool: pd.DataFrame,
    drawing: StepPlanParams,
    params: StepParams,
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    topology: TopologyParams,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Tasks, plans and measured steps of random plans; empty frames if steps are not measured (`measures_steps`).

    With a modelled network, the steps run on virtual ranks.
    """
    network, plans = topology.network if comm.backend == "topology" else None, list[Plan]()
    if measures_steps(compute.backend, comm.backend, params):
        plans = random_plans(pool, drawing, network.gpus_per_host if network else None)
    costs = measure_step_costs(
        plans, params, lambda groups: tqdm(groups, desc="measure steps", unit=" tasks", disable=None), network
    )
    tasks = {plan.task.task_id: plan.task for plan in plans}
    return tasks_to_frame(list(tasks.values())), plans_frame(plans), costs


def _reduction_samples(frame: pd.DataFrame) -> list[ReductionSample]:
    columns = ("sample_id", "collective", "size_bytes", "world_size", "hosts")
    return [ReductionSample(*row) for row in zip(*(frame[name].tolist() for name in columns), strict=True)]
