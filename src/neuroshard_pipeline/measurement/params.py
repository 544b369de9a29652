"""Parameters of the two measurement campaigns: flat, frozen, without defaults (the values live in `conf/`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from neuroshard_pipeline.measurement.protocol import TimingProtocol
from neuroshard_pipeline.workers import WorkerParams


class CampaignParams(TimingProtocol):
    """What both campaigns have: the timing protocol, and how visits become a campaign.

    Attributes:
        threads: threads of one worker's kernels, or of one rank.
        chunk_samples: samples measured between two saves; a killed run loses at most this many visits per worker.
        shuffle: what every visit puts into a new order. `samples`: all of them, so that a sample stands between others
            every time. `stretches`: whole stretches, and the samples within each; samples that follow each other, such
            as plans of one task, then meet the machine in the same state.
        noise_floor_share: share of the samples that are measured a second time, independently.
        disturbed_slowdown: a stretch whose reference probe ran this many times slower than the best probe of
            the campaign is measured again.
        wide_spread_share: a sample whose `spread_ms` exceeds this share of its cost gets extra visits, at most as
            many as regular ones.
        extra_visit_budget_s: time for both kinds of extra visits, summed over workers, in seconds.
        timeout_s: a stretch that takes longer counts as hung; its worker, or its ranks, are replaced.
    """

    threads: int = Field(ge=1, le=1024)
    chunk_samples: int = Field(ge=1, le=100_000)
    shuffle: Literal["samples", "chunks"]
    noise_floor_share: float = Field(ge=0, le=1)
    disturbed_slowdown: float = Field(gt=1)
    wide_spread_share: float = Field(gt=0)
    extra_visit_budget_s: float = Field(ge=0)
    timeout_s: float = Field(gt=0)

    @property
    def protocol(self) -> TimingProtocol:
        """The timing protocol among these parameters."""
        return TimingProtocol(**{name: getattr(self, name) for name in TimingProtocol.model_fields})

    def overridden(self, overrides: BaseModel) -> Self:
        """These parameters with the fields that `overrides` states replaced, and validated again as a whole.

        Args:
            overrides: `ComputeOverrides` for a compute campaign, `CommOverrides` for a communication campaign.
        """
        return type(self).model_validate(self.model_dump() | overrides.model_dump(exclude_unset=True))


class ComputeMeasureParams(CampaignParams):
    """What decides a campaign of compute costs.

    Attributes:
        backend: which kernels run. `fbgemm_cpu`: FBGEMM's table-batched embedding on CPU. `fbgemm_cuda`: the same on
            GPUs. `recorded`: none; costs are looked up in a recording (`RecordingParams`) and what concerns the
            protocol is that of the recording.
        engine: where the workers are. `local`: processes of this host. `ray`: workers of a Ray cluster, whose hosts
            must be like this one. A campaign may be begun with one and finished with the other.
        cluster_address: with `ray`, of the cluster: see `execution.ExecutorParams`.
        workers: processes that measure at the same time, each on a core or GPU of its own; a cluster with room for
            fewer runs as many as it has room for.
        arena_bytes: memory of one worker's weight arena, several times the last-level cache for cold rows; a
            sample with more weights becomes an error row.
        thorough_lookup_bytes: a sample whose batch looks up more bytes of rows than this gets fewer than `visits`
            visits, in inverse proportion: its iterations are long and scatter less, and the dearest eighth of all
            samples would take half of a campaign. None: every sample gets all visits.
        least_visits: but not fewer than so many, as far as there are.
    """

    backend: Literal["fbgemm_cpu", "fbgemm_cuda", "recorded"]
    engine: Literal["local", "ray"]
    cluster_address: str | None
    workers: int = Field(ge=1, le=1024)
    arena_bytes: int = Field(ge=2**22)
    thorough_lookup_bytes: int | None = Field(ge=1)
    least_visits: int = Field(ge=1, le=1000)

    @property
    def costs_are(self) -> str:
        """`measured`, or `recorded` where they were measured elsewhere."""
        return "recorded" if self.backend == "recorded" else "measured"

    @property
    def worker_params(self) -> WorkerParams:
        """Where the workers of the campaign run."""
        return WorkerParams(
            engine=self.engine, address=self.cluster_address, workers=self.workers, timeout_s=self.timeout_s
        )


class CommMeasureParams(CampaignParams):
    """What decides a campaign of communication costs.

    Attributes:
        backend: which collectives run. `gloo`: torch.distributed's all-to-all between processes. `nccl`: the same
            between GPUs. `topology`: none; costs come from a model of a cluster (`TopologyParams`) and what concerns
            the protocol does not apply.
        local_world_size: ranks per host. A collective of more ranks is measured across hosts, by ranks that torchrun
            has started there (`torchrun_ranks`), the others by processes of this host. None: all are.
        torchrun_endpoint: `<host>:<port>` that torchrun was given as --rdzv-endpoint; None without `local_world_size`.
        cache_treatment: see `TimingProtocol`.
        buffer_bytes: the largest send or receive buffer of one rank; a sample that needs more becomes error rows.
        start_margin_ms: how far ahead the ranks agree on their common start; long enough that all are waiting.
    """

    backend: Literal["gloo", "nccl", "topology"]
    local_world_size: int | None = Field(ge=1, le=1024)
    torchrun_endpoint: str | None = Field(pattern=r"^.+:\d{1,5}$")
    cache_treatment: Literal["warm"]
    buffer_bytes: int = Field(ge=2**10)
    start_margin_ms: float = Field(gt=0, le=1000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.local_world_size is None) != (self.torchrun_endpoint is None):
            raise ValueError("local_world_size and torchrun_endpoint go together: give both, or neither for one host")
        return self

    @property
    def costs_are(self) -> str:
        """`measured`, or `modelled` where no collective runs."""
        return "modelled" if self.backend == "topology" else "measured"


def _all_optional(params: type[BaseModel]) -> Any:
    """A model with the fields of `params`, each of which may be left out; a field that is given is validated."""
    fields: dict[str, Any] = {
        name: (Annotated[(field.annotation, Field(), *field.metadata)], None)
        for name, field in params.model_fields.items()
    }
    return create_model(params.__name__, __config__=ConfigDict(extra="forbid", frozen=True), **fields)


_OptionalComputeFields: Any = _all_optional(ComputeMeasureParams)
_OptionalCommFields: Any = _all_optional(CommMeasureParams)


class ComputeOverrides(_OptionalComputeFields):
    """The fields of `ComputeMeasureParams` that differ in another stage; see `CampaignParams.overridden`."""


class CommOverrides(_OptionalCommFields):
    """The fields of `CommMeasureParams` that differ in another stage; see `CampaignParams.overridden`."""
