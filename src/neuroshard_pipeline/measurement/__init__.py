"""Measured costs: what a fused lookup and an all-to-all take on the devices at hand.

Start with `campaign`; the other files in the order in which it leans on them:

    campaign       run, resume and reduce a campaign; measure in memory
    stretches      what is measured in which order, and the keys of its shards
    extra_visits   which samples are visited more often than planned
    crew           worker teams of a campaign, and failures as rows
    workers        processes that may die
    compute_bench  one worker: FBGEMM lookups
    fbgemm         what the bench uses of FBGEMM
    comm_bench     one rank: torch.distributed collectives
    costs          from raw shards to costs and noise floor
    protocol       how a cost is timed
    params         parameters of the campaigns
    hardware       what a campaign ran on
"""

from neuroshard_pipeline.measurement.campaign import (
    measure_comm,
    measure_compute,
    noise_floor,
    reduce_comm,
    reduce_compute,
    run_comm_campaign,
    run_compute_campaign,
)
from neuroshard_pipeline.measurement.hardware import describe_hardware
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.protocol import TimingProtocol

__all__ = [
    "CommMeasureParams",
    "ComputeMeasureParams",
    "TimingProtocol",
    "describe_hardware",
    "measure_comm",
    "measure_compute",
    "noise_floor",
    "reduce_comm",
    "reduce_compute",
    "run_comm_campaign",
    "run_compute_campaign",
]
