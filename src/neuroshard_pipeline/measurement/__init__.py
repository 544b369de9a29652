"""Measured costs: what a fused lookup and an all-to-all take on the devices at hand.

Start with `campaign`; the other files in the order in which it leans on them:

    campaign       run, resume and reduce a campaign; measure in memory
    stretches      what is measured in which order, and the keys of its shards
    extra_visits   which samples are visited more often than planned
    cluster_crew   workers of a compute campaign on a Ray cluster
    crew           worker teams of a campaign, and failures as rows
    workers        processes that may die
    compute_bench  one worker: FBGEMM lookups on the CPU
    cuda_bench     the same on a GPU
    lookup_bench   what the two share
    fbgemm         what they use of FBGEMM
    comm_bench     one rank: torch.distributed collectives, gloo's or NCCL's
    host_clock     one clock for ranks on several hosts
    torchrun_team  ranks on several hosts, as a campaign sees them
    torchrun_ranks what torchrun starts there
    cuda           which CUDA devices there are
    recording      compute costs recorded elsewhere
    topology       communication costs from a model of a cluster
    anchors        samples measured again, which tell the machine's drift between two campaigns
    costs          from raw shards to costs and noise floor
    protocol       how a cost is timed
    params         parameters of the campaigns
    hardware       what a campaign ran on
"""

from neuroshard_pipeline.measurement.campaign import (
    campaign_date,
    measure_comm,
    measure_compute,
    noise_floor,
    reduce_comm,
    reduce_compute,
    run_comm_campaign,
    run_compute_campaign,
)
from neuroshard_pipeline.measurement.hardware import describe_hardware, describe_machine
from neuroshard_pipeline.measurement.params import (
    CommMeasureParams,
    CommOverrides,
    ComputeMeasureParams,
    ComputeOverrides,
)
from neuroshard_pipeline.measurement.protocol import TimingProtocol
from neuroshard_pipeline.measurement.recording import RecordingParams, make_card, open_recording, write_recording
from neuroshard_pipeline.measurement.topology import TopologyParams

__all__ = [
    "CommMeasureParams",
    "CommOverrides",
    "ComputeMeasureParams",
    "ComputeOverrides",
    "RecordingParams",
    "TimingProtocol",
    "TopologyParams",
    "campaign_date",
    "describe_hardware",
    "describe_machine",
    "make_card",
    "measure_comm",
    "measure_compute",
    "noise_floor",
    "open_recording",
    "reduce_comm",
    "reduce_compute",
    "run_comm_campaign",
    "run_compute_campaign",
    "write_recording",
]
