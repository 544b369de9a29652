"""Measures the costs of fused lookups and of collectives.

A sample is what one measurement runs: the lookups of one rank, a forward and a backward all-to-all or only one of them,
or one reduction (such as all_reduce). A campaign measures many samples and visits each of them several times. A chunk
is a list of samples that are measured one after another and saved together, as a record.

Start with `campaign`. The other files follow in the order in which a reader meets them:

    campaign        runs and resumes a campaign, and returns its costs
    identity        what the timings of a campaign depend on
    chunks          the order of the measurements, and the keys of their records
    failures        logs failed samples, and stops a campaign whose first samples all fail
    pools           the teams of worker processes that measure chunks
    time_budget     which rounds of visits a slow machine still starts
    id_files        drawn ids in files
    compute_bench   one worker that times FBGEMM lookups on the CPU
    cuda_bench      the same on a GPU
    lookup_bench    what both benches have in common
    fbgemm          the parts of FBGEMM that they use
    comm_bench      one rank that times torch.distributed collectives of gloo or NCCL
    collective_start  how ranks start a collective together, and time it
    host_clock      a common clock for ranks on several hosts
    torchrun_team   a team that gives orders to ranks on several hosts
    torchrun_ranks  the program that torchrun starts on these hosts
    cuda            the CUDA devices of this host
    recording       compute costs that were recorded elsewhere
    modelled        compute costs from a model of a GPU
    topology        communication costs from a model of a cluster
    costs           computes costs and the noise floor from records
    timing          the result of one visit
    params          parameters of the campaigns, including the timing protocol
    hardware        describes the machine that a campaign ran on
"""

from neuroshard_pipeline.measurement.campaign import CampaignSummary, CommCampaign, ComputeCampaign
from neuroshard_pipeline.measurement.hardware import describe_hardware
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.pools import PRELOAD
from neuroshard_pipeline.measurement.recording import Recording, RecordingParams, open_recording
from neuroshard_pipeline.measurement.topology import TopologyParams

__all__ = [
    "PRELOAD",
    "CampaignSummary",
    "CommCampaign",
    "CommMeasureParams",
    "ComputeCampaign",
    "ComputeMeasureParams",
    "Recording",
    "RecordingParams",
    "TopologyParams",
    "describe_hardware",
    "open_recording",
]
