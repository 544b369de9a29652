"""How samples are measured: the parameters of both kinds of campaigns, bound to the functions that run them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import (
    CommMeasureParams,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
    describe_hardware,
    reduce_comm,
    reduce_compute,
    run_comm_campaign,
    run_compute_campaign,
    summarise_campaign,
)
from neuroshard_pipeline.measurement.costs import Records
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

#: What a campaign measured, and the samples that it was about.
ComputeRecords = tuple[Records, Sequence[ComputeSample]]
CommRecords = tuple[Records, Sequence[CommSample]]


@dataclass(frozen=True)
class Campaigns:
    """Measures compute and communication samples, in resumable campaigns or in memory.

    Attributes:
        compute_params: parameters of compute campaigns.
        comm_params: parameters of communication campaigns.
        seed: seed of the drawn ids and of the order of visits. It must be the seed of the samples that the models
            are trained on, so that a table has the same ids everywhere.
        recording: the recording for the compute backend `recorded`.
        topology: the cluster for the communication backend `topology`.
    """

    compute_params: ComputeMeasureParams
    comm_params: CommMeasureParams
    seed: int
    recording: RecordingParams | None = None
    topology: TopologyParams | None = None

    def run_compute(self, samples: Sequence[ComputeSample], done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure what the records `done` lack, and yield (key, record) for the caller to store."""
        return run_compute_campaign(samples, self.compute_params, self.seed, done)

    def run_comm(self, samples: Sequence[CommSample], done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure what the records `done` lack, and yield (key, record) for the caller to store."""
        return run_comm_campaign(samples, self.comm_params, self.seed, done)

    def compute_costs(self, records: Records, samples: Sequence[ComputeSample]) -> pd.DataFrame:
        """`sample_id, forward_ms, backward_ms, spread_ms, repeats, error` from the records of a finished campaign."""
        return reduce_compute(records, samples, self.compute_params, self.seed, self.recording)

    def comm_costs(self, records: Records, samples: Sequence[CommSample]) -> pd.DataFrame:
        """`sample_id, rank, forward_ms, backward_ms, spread_ms, error` from the records of a finished campaign."""
        return reduce_comm(records, samples, self.comm_params, self.seed, self.topology)

    def measure_compute(self, samples: Sequence[ComputeSample]) -> pd.DataFrame:
        """Run a compute campaign in memory; see `compute_costs`."""
        return self.compute_costs(dict(self.run_compute(samples, {})), samples)

    def measure_comm(self, samples: Sequence[CommSample]) -> pd.DataFrame:
        """Run a communication campaign in memory; see `comm_costs`."""
        return self.comm_costs(dict(self.run_comm(samples, {})), samples)

    def hardware(self, compute: ComputeRecords, backward: CommRecords, forward: CommRecords) -> dict[str, Any]:
        """Describe the hardware and the noise floor of finished campaigns, one per part of the cost of plans."""
        lookups = summarise_campaign(*compute, self.compute_params, self.seed, self.recording)
        gradients, outputs = (summarise_campaign(*comm, self.comm_params, self.seed) for comm in (backward, forward))
        floors = {"backward": gradients.noise_floor["backward"], "forward": outputs.noise_floor["forward"]}
        newest = max((each.date for each in (lookups, gradients, outputs) if each.date), default=None)
        params = self.compute_params, self.comm_params
        return describe_hardware(*params, lookups.noise_floor, floors, newest, self.recording, self.topology)

    @property
    def costs_are(self) -> dict[str, str]:
        """Origin of the costs: `measured`, `recorded` or `modelled`, for `compute` and `comm`."""
        return {"compute": self.compute_params.costs_are, "comm": self.comm_params.costs_are}

    def require_measuring(self) -> None:
        """Refuse a compute backend that can only look up samples that were recorded before.

        Raises:
            MeasurementError: names the backend and the backends that measure.
        """
        if self.compute_params.backend == "recorded":
            raise MeasurementError(
                "compute backend 'recorded' measures nothing, so it has no costs of the shards that a search chooses; "
                "run refine on a machine that can measure lookups, with measure.compute.backend fbgemm_cpu or "
                "fbgemm_cuda (environments base and cuda)"
            )
