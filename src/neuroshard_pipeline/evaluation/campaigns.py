"""The two kinds of campaigns that measure plans: of lookups, and of collectives.

A campaign measures many samples. A sample is what one measurement runs: one lookup kernel of a rank, one collective, or
a pair of all-to-alls (forward and backward).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuroshard_pipeline.measurement import CampaignSummary, CommCampaign, ComputeCampaign, describe_hardware
from neuroshard_pipeline.measurement.costs import Records
from neuroshard_pipeline.tables.samples import CollectiveSample, ComputeSample

#: The records (timings) of a campaign, and the samples that it measured.
ComputeRecords = tuple[Records, Sequence[ComputeSample]]
CommRecords = tuple[Records, Sequence[CollectiveSample]]


@dataclass(frozen=True)
class Campaigns:
    """How compute and communication samples are measured.

    Attributes:
        compute: measures lookups. Its seed must be the seed of the campaign that measured the training samples: a table
            then has the same ids in both.
        comm: measures collectives.
    """

    compute: ComputeCampaign
    comm: CommCampaign

    def hardware(self, compute: ComputeRecords, backward: CommRecords, forward: CommRecords) -> dict[str, Any]:
        """Describe the hardware and noise floors of the three campaigns of plans (`measure_plans`)."""
        lookups = self.compute.summary(*compute)
        gradients, outputs = self.comm.summary(*backward), self.comm.summary(*forward)
        floors = {"backward": gradients.noise_floor["backward"], "forward": outputs.noise_floor["forward"]}
        newest = max((each.date for each in (gradients, outputs) if each.date), default=None)
        known = [each.other_programs for each in (gradients, outputs) if each.other_programs is not None]
        collectives = CampaignSummary(newest, floors, max(known, default=None))
        return describe_hardware(
            self.compute.params, self.comm.params, lookups, collectives, self.compute.recording, self.comm.topology
        )

    @property
    def costs_are(self) -> dict[str, str]:
        """Origin of the costs: `measured`, `recorded` or `modelled`, for `compute` and `comm`."""
        return {"compute": self.compute.params.costs_are, "comm": self.comm.params.costs_are}
