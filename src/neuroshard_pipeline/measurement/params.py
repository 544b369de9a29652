"""Parameters of measurement campaigns for compute costs and for communication costs; the values are in `conf/`."""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.workers import WorkerParams

VisitStatistic = Literal["lower_quartile", "min", "median", "mean"]


class CampaignParams(Parameters):
    """Parameters of both kinds of campaigns: how a cost is timed, and how visits form a campaign.

    A campaign visits every sample `visits` times (expensive samples fewer times if its parameters say so). Every round
    of visits has a different random order. This spreads the visits of one sample over the whole campaign: a slow
    minute of the machine affects one visit of many samples instead of all visits of a few. One visit runs
    `warmup_iterations` untimed and then `iterations` timed iterations. Forward and backward are timed and reduced
    separately.

    Attributes:
        visits: rounds of visits in the campaign. With more visits than before, only the additional ones are measured;
            with fewer, all stored visits still count.
        warmup_iterations: untimed iterations at the start of a visit; they load ids and code into the caches.
        iterations: timed iterations of a visit.
        iteration_statistic: reduces the iterations of a visit to its cost. `min` suits lookups on one core, because
            disturbances only add time. `median` suits collectives: their ranks share cores and run in a different
            order every time, and the minimum would pick a lucky order.
        visit_statistic: reduces the visits of a sample to its cost. `lower_quartile` excludes disturbed visits and,
            unlike `min`, depends on several visits. Repeated timings on one core vary in both directions, because each
            visit places the rows at a different address; `min` would pick a lucky address. `median` suits devices whose
            clock varies in both directions.
        threads: threads of the kernels of one worker, or of one rank.
        chunk_samples: maximum number of samples in a chunk, which are measured one after another and saved together. A
            killed run loses at most this many visits per worker.
        shuffle: what every round of visits shuffles. `samples`: all samples, so that a sample has other neighbours
            every time. `chunks`: the chunks and the samples within each chunk; consecutive samples, such as plans of
            one task, are then measured in the same state of the machine.
        noise_floor_share: share of the samples that are measured a second time, independently of the first time. The
            noise floor is the median relative difference between both measurements.
        time_budget_s: seconds for this campaign in one run. The first half of the rounds of visits always runs; each
            further round runs only if it is expected to end in time. The next run measures the rest. Null: no limit.
        timeout_s: time limit for a chunk in seconds. A worker that exceeds it counts as hung and is replaced.
    """

    visits: int = Field(ge=1, le=1000)
    warmup_iterations: int = Field(ge=0, le=1000)
    iterations: int = Field(ge=1, le=1000)
    iteration_statistic: Literal["min", "median"]
    visit_statistic: VisitStatistic
    threads: int = Field(ge=1, le=1024)
    chunk_samples: int = Field(ge=1, le=100_000)
    shuffle: Literal["samples", "chunks"]
    noise_floor_share: float = Field(ge=0, le=1)
    time_budget_s: float | None = Field(ge=0)
    timeout_s: float = Field(gt=0)

    def of_visit(self, timed_ms: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Forward and backward cost of a visit from its timed iterations."""
        reduce = np.min if self.iteration_statistic == "min" else np.median
        forward_ms, backward_ms = reduce(np.asarray(timed_ms), axis=0).tolist()
        return forward_ms, backward_ms


class ComputeMeasureParams(CampaignParams):
    """Parameters of a campaign of compute costs.

    Attributes:
        backend: which kernels run. `fbgemm_cpu`: FBGEMM's table-batched embedding on the CPU. `fbgemm_cuda`: the same
            on GPUs. `recorded`: no kernels; costs are looked up in a recording (`RecordingParams`), and the protocol is
            that of the recording. `modelled`: no kernels; costs come from a model of a GPU
            (`RecordingParams.modelled_device`), and the protocol does not apply.
        engine: `local` measures with processes of this host. `ray` measures with workers of a Ray cluster, whose hosts
            must be of the same kind as this one. A campaign may start with one engine and continue with the other.
        cluster_address: address of the Ray cluster; see `WorkerParams.address`.
        workers: number of processes that measure at the same time, each on its own core or GPU. A cluster with less
            room runs as many as fit.
        cache_treatment: state of the weights in the caches at the start of an iteration. `cold_rows`: the weights
            move to another place of a large arena before every iteration, so that every row comes from memory; on a
            GPU, other data also fill the L2 cache before each pass. This resembles training, where a new batch and the
            rest of the model pass through the caches between lookups. `warm`: the weights stay in place, and an
            iteration finds them in the caches as far as they fit.
        arena_bytes: size of the arena, the memory for the weights of one worker. For cold rows, choose several times
            the last-level cache. A sample with more weights gets an error and no cost.
        thorough_lookup_bytes: a sample whose batch looks up more bytes of rows than this gets fewer visits, in inverse
            proportion. Its iterations are long and vary less, and the most expensive eighth of all samples would
            otherwise take half of the campaign. Null: every sample gets all visits.
        least_visits: minimum number of visits of such a sample.
        ids_folder: folder that keeps drawn ids in files, mostly 4 bytes per id; all campaigns may share it. Null: every
            worker draws ids itself, keeps a limited number of them in memory, and draws the rest again at every visit.
    """

    backend: Literal["fbgemm_cpu", "fbgemm_cuda", "recorded", "modelled"]
    engine: Literal["local", "ray"]
    cluster_address: str | None
    workers: int = Field(ge=1, le=1024)
    cache_treatment: Literal["cold_rows", "warm"]
    arena_bytes: int = Field(ge=2**22)
    thorough_lookup_bytes: int | None = Field(ge=1)
    least_visits: int = Field(ge=1, le=1000)
    ids_folder: str | None

    @property
    def costs_are(self) -> str:
        """Origin of the costs: `measured`, `recorded` or `modelled`."""
        return self.backend if self.backend in ("recorded", "modelled") else "measured"

    @property
    def worker_params(self) -> WorkerParams:
        """Where the workers of the campaign run."""
        return WorkerParams(
            engine=self.engine, address=self.cluster_address, workers=self.workers, timeout_s=self.timeout_s
        )


class CommMeasureParams(CampaignParams):
    """Parameters of a campaign of communication costs.

    Attributes:
        backend: which collectives run. `gloo`: torch.distributed's, between processes. `nccl`: the same between GPUs.
            `topology`: none; costs come from a model of a cluster (`TopologyParams`), and the protocol does not apply.
        local_world_size: ranks per host. A larger world size is measured across hosts, by ranks that torchrun has
            started there (`torchrun_ranks`). Null: all ranks are processes of this host.
        torchrun_endpoint: `<host>:<port>`, the --rdzv-endpoint of torchrun; null without `local_world_size`.
        reduction_visits: number of visits of a reduction (reduce_scatter, all_gather, all_reduce), at most `visits`.
        reduction_statistic: reduces the visits of a reduction to its cost, instead of `visit_statistic`. `mean` suits
            gloo: between two ranks on two cores, a reduction takes either less than a millisecond or about one time
            slice of the scheduler longer, and a quantile of a few visits picks one of the two by chance.
        buffer_bytes: size of the send buffer and of the receive buffer of one rank. A sample that needs more gets an
            error and no cost.
        start_margin_ms: time from the agreement on a common start until that start; all ranks must be waiting by then.
    """

    backend: Literal["gloo", "nccl", "topology"]
    local_world_size: int | None = Field(ge=1, le=1024)
    torchrun_endpoint: str | None = Field(pattern=r"^.+:\d{1,5}$")
    reduction_visits: int = Field(ge=1, le=1000)
    reduction_statistic: VisitStatistic
    buffer_bytes: int = Field(ge=2**10)
    start_margin_ms: float = Field(gt=0, le=1000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.local_world_size is None) != (self.torchrun_endpoint is None):
            raise ValueError("local_world_size and torchrun_endpoint go together: give both, or neither for one host")
        return self

    @property
    def costs_are(self) -> str:
        """Origin of the costs: `measured` or `modelled`."""
        return "modelled" if self.backend == "topology" else "measured"


#: Parameters of a campaign of either kind.
AnyParams = ComputeMeasureParams | CommMeasureParams
