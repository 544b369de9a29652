"""Parameters of the two measurement campaigns: flat, frozen, without defaults (the values live in `conf/`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from neuroshard_pipeline.measurement.protocol import TimingProtocol


class ComputeMeasureParams(BaseModel):
    """What decides a campaign of compute costs.

    Attributes:
        backend: which kernels run. `fbgemm_cpu`: FBGEMM's table-batched embedding on CPU. `fbgemm_cuda`: the same on
            GPUs. `recorded`: none; costs are looked up in a recording (`RecordingParams`) and what concerns the
            protocol is that of the recording.
        optimizer: the optimizer fused into the backward pass.
        visits: see `TimingProtocol`.
        warmup_iterations: see `TimingProtocol`.
        iterations: see `TimingProtocol`.
        iteration_statistic: see `TimingProtocol`.
        visit_statistic: see `TimingProtocol`.
        cache_treatment: see `TimingProtocol`.
        workers: processes that measure at the same time, each on a core or GPU of its own.
        threads: threads of one worker's kernels.
        arena_bytes: memory of one worker's weight arena, several times the last-level cache for cold rows; a
            sample with more weights becomes an error row.
        chunk_samples: samples measured between two saves; a killed run loses at most this many visits per worker.
        noise_floor_share: share of the samples that are measured a second time, independently.
        disturbed_slowdown: a stretch whose reference probe ran this many times slower than the best probe of
            the campaign is measured again.
        wide_spread_share: a sample whose `spread_ms` exceeds this share of its cost gets extra visits, at most as
            many as regular ones.
        extra_visit_budget_s: time for both kinds of extra visits, summed over workers, in seconds.
        timeout_s: a stretch that takes longer counts as hung; its worker is replaced.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["fbgemm_cpu", "fbgemm_cuda", "recorded"]
    optimizer: Literal["sgd", "rowwise_adagrad"]
    visits: int = Field(ge=1, le=1000)
    warmup_iterations: int = Field(ge=0, le=1000)
    iterations: int = Field(ge=1, le=1000)
    iteration_statistic: Literal["min", "median"]
    visit_statistic: Literal["min"]
    cache_treatment: Literal["cold_rows", "warm"]
    workers: int = Field(ge=1, le=1024)
    threads: int = Field(ge=1, le=1024)
    arena_bytes: int = Field(ge=2**22)
    chunk_samples: int = Field(ge=1, le=100_000)
    noise_floor_share: float = Field(ge=0, le=1)
    disturbed_slowdown: float = Field(gt=1)
    wide_spread_share: float = Field(gt=0)
    extra_visit_budget_s: float = Field(ge=0)
    timeout_s: float = Field(gt=0)

    @property
    def protocol(self) -> TimingProtocol:
        """The timing protocol among these parameters."""
        return TimingProtocol(**{name: getattr(self, name) for name in TimingProtocol.model_fields})


class CommMeasureParams(BaseModel):
    """What decides a campaign of communication costs.

    Attributes:
        backend: which collectives run. `gloo`: torch.distributed's all-to-all between processes of this host.
            `nccl`: the same between its GPUs. `topology`: none; costs come from a model of a cluster
            (`TopologyParams`) and what concerns the protocol does not apply.
        visits: see `TimingProtocol`.
        warmup_iterations: see `TimingProtocol`.
        iterations: see `TimingProtocol`.
        iteration_statistic: see `TimingProtocol`; taken per rank.
        visit_statistic: see `TimingProtocol`; taken per rank.
        cache_treatment: see `TimingProtocol`.
        threads: threads of one rank.
        buffer_bytes: the largest send or receive buffer of one rank; a sample that needs more becomes error rows.
        start_margin_ms: how far ahead the ranks agree on their common start; long enough that all are waiting.
        chunk_samples: samples measured between two saves.
        noise_floor_share: share of the samples that are measured a second time, independently.
        disturbed_slowdown: see `ComputeMeasureParams`.
        wide_spread_share: see `ComputeMeasureParams`.
        extra_visit_budget_s: see `ComputeMeasureParams`.
        timeout_s: a stretch that takes longer counts as hung; its ranks are replaced.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["gloo", "nccl", "topology"]
    visits: int = Field(ge=1, le=1000)
    warmup_iterations: int = Field(ge=0, le=1000)
    iterations: int = Field(ge=1, le=1000)
    iteration_statistic: Literal["min", "median"]
    visit_statistic: Literal["min"]
    cache_treatment: Literal["warm"]
    threads: int = Field(ge=1, le=1024)
    buffer_bytes: int = Field(ge=2**10)
    start_margin_ms: float = Field(gt=0, le=1000)
    chunk_samples: int = Field(ge=1, le=100_000)
    noise_floor_share: float = Field(ge=0, le=1)
    disturbed_slowdown: float = Field(gt=1)
    wide_spread_share: float = Field(gt=0)
    extra_visit_budget_s: float = Field(ge=0)
    timeout_s: float = Field(gt=0)

    @property
    def protocol(self) -> TimingProtocol:
        """The timing protocol among these parameters."""
        return TimingProtocol(**{name: getattr(self, name) for name in TimingProtocol.model_fields})
