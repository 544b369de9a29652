"""Anchors: samples of the first campaign that are measured again to estimate the machine's drift.

A campaign measures many samples; each is a lookup kernel of one rank, or a collective. The first campaign
measured the training data. A later one measures plans, minutes or days afterwards, when a shared machine may have
changed speed. Anchors are measured among its samples; their costs in both campaigns give the drift.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field

from neuroshard_pipeline.evaluation.drift import Drift, fit_drift
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import CollectiveSample, CommSample, ComputeSample

Sample = TypeVar("Sample", ComputeSample, CommSample)
AnySample = TypeVar("AnySample", bound=ComputeSample | CollectiveSample)

#: Columns with the costs of a sample, one per direction. `fit_drifts` fits one drift to each direction.
DIRECTIONS = ("forward_ms", "backward_ms")


class AnchorParams(Parameters):
    """How many samples are measured again.

    Attributes:
        compute_samples: number of compute samples.
        comm_samples: number of communication samples.
    """

    compute_samples: int = Field(ge=0, le=10_000)
    comm_samples: int = Field(ge=0, le=10_000)


@dataclass(frozen=True)
class Anchors:
    """Samples of the first campaign with their costs in that campaign.

    Attributes:
        compute: compute samples.
        comm: communication samples.
        compute_costs: rows of `measure.compute_costs` for `compute`.
        comm_costs: rows of `measure.comm_costs` for `comm`.
    """

    compute: tuple[ComputeSample, ...]
    comm: tuple[CommSample, ...]
    compute_costs: pd.DataFrame
    comm_costs: pd.DataFrame

    def marked(self, session: str) -> Self:
        """The same anchors with a hash of `session` in their ids, so that timings of other sessions are not reused.

        Args:
            session: text that identifies the plans that are measured together with the anchors.
        """
        mark = f"@{hashlib.sha256(session.encode()).hexdigest()[:12]}"
        return replace(
            self,
            compute=tuple(replace(sample, sample_id=sample.sample_id + mark) for sample in self.compute),
            comm=tuple(replace(sample, sample_id=sample.sample_id + mark) for sample in self.comm),
            compute_costs=self.compute_costs.assign(sample_id=self.compute_costs["sample_id"] + mark),
            comm_costs=self.comm_costs.assign(sample_id=self.comm_costs["sample_id"] + mark),
        )


_COST_COLUMNS = ["sample_id", *DIRECTIONS, "error"]
NO_ANCHORS = Anchors((), (), pd.DataFrame(columns=_COST_COLUMNS), pd.DataFrame(columns=[*_COST_COLUMNS, "rank"]))


def choose_anchors(first: MeasuredSamples, params: AnchorParams, world_sizes: Collection[int] | None = None) -> Anchors:
    """Choose anchors of both kinds, evenly spaced from the cheapest to the most expensive sample.

    Args:
        first: the first campaign.
        params: numbers of anchors.
        world_sizes: the world sizes of communication anchors, or None for all. Each further world size takes time,
            because another set of rank processes is started for it.
    """
    comm = [sample for sample in first.comm() if world_sizes is None or sample.world_size in world_sizes]
    lookups = evenly_spaced(first.compute(), first.compute_costs, params.compute_samples)
    collectives = evenly_spaced(comm, first.comm_costs, params.comm_samples)
    costs = (
        frame[frame["sample_id"].isin([sample.sample_id for sample in samples])]
        for frame, samples in ((first.compute_costs, lookups), (first.comm_costs, collectives))
    )
    return Anchors(tuple(lookups), tuple(collectives), *costs)


def evenly_spaced(samples: Sequence[Sample], costs: pd.DataFrame, count: int) -> list[Sample]:
    """At most `count` measured samples, evenly spaced in the order from the cheapest to the most expensive.

    Args:
        samples: samples of the first campaign.
        costs: `sample_id, forward_ms, backward_ms, error`, one row per sample or per rank of a sample. A sample with
            an error on any rank is left out.
        count: maximum number of samples.
    """
    good = costs[~costs["sample_id"].isin(costs.loc[costs["error"].notna(), "sample_id"])]
    total = good[list(DIRECTIONS)].sum(axis=1).groupby(good["sample_id"]).max()
    known = [sample for sample in samples if sample.sample_id in total.index]
    measured = sorted(known, key=lambda sample: total[sample.sample_id])
    places = np.linspace(0, len(measured) - 1, min(count, len(measured))).round().astype(int)
    return [measured[place] for place in places]


def among(samples: Sequence[AnySample], anchors: Sequence[AnySample]) -> list[AnySample]:
    """Samples and anchors, mixed evenly in one list: with `shuffle: chunks`, neighbours are measured in one chunk."""
    places = np.concatenate([np.linspace(0, 1, len(part), endpoint=False) for part in (samples, anchors)])
    together = [*samples, *anchors]
    return [together[place] for place in np.argsort(places, kind="stable")]


def fit_drifts(first: pd.DataFrame, later: pd.DataFrame) -> dict[str, Drift]:
    """Drift of every direction from the costs of the same samples in two campaigns."""
    both = _joined(first, later)
    return {name: fit_drift(both[f"{name}_first"], both[f"{name}_later"]) for name in DIRECTIONS}


def anchors_frame(
    anchors: Anchors, compute_costs: pd.DataFrame, forward_costs: pd.DataFrame, backward_costs: pd.DataFrame
) -> pd.DataFrame:
    """`search.anchors`: costs of the anchors in the first campaign and in the campaigns of the plans.

    Args:
        anchors: the anchors, with their costs in the first campaign.
        compute_costs: costs of the plans' lookup kernels and the compute anchors, measured in one campaign.
        forward_costs: costs of the plans' forward collectives and the communication anchors, from one campaign.
        backward_costs: costs of the plans' backward collectives and the communication anchors, from one campaign.

    Returns:
        `part, sample_id, rank` (null for compute), `first_ms, again_ms`. The ids are those of the first campaign.
    """
    parts = [
        _both_costs("compute", anchors.compute_costs, compute_costs, DIRECTIONS),
        _both_costs("forward_comm", anchors.comm_costs, forward_costs, DIRECTIONS[:1]),
        _both_costs("backward_comm", anchors.comm_costs, backward_costs, DIRECTIONS[1:]),
    ]
    return pd.concat(parts, ignore_index=True)


def drifts_of_parts(anchors: pd.DataFrame) -> dict[str, Drift]:
    """Drift of every part of the cost that has anchors, from `search.anchors`."""
    parts = anchors.groupby("part", sort=False)
    return {str(part): fit_drift(rows["first_ms"], rows["again_ms"]) for part, rows in parts}


def _joined(first: pd.DataFrame, later: pd.DataFrame) -> pd.DataFrame:
    """One row per sample (or rank) without error in both campaigns; column suffixes are `_first` and `_later`."""
    keys = [key for key in ("sample_id", "rank") if key in first and key in later]
    known = [costs[costs["error"].isna()] for costs in (first, later)]
    return known[0].merge(known[1], on=keys, suffixes=("_first", "_later"))


def _both_costs(part: str, first: pd.DataFrame, again: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    both = _joined(first, again)
    sums = {
        name: both[[f"{column}_{suffix}" for column in columns]].astype(float).sum(axis=1)
        for name, suffix in (("first_ms", "first"), ("again_ms", "later"))
    }
    ranks = both["rank"] if "rank" in both else pd.Series(pd.NA, index=both.index)
    ids = pd.Series([name.partition("@")[0] for name in both["sample_id"]], index=both.index, dtype=object)
    return pd.DataFrame({"part": part, "sample_id": ids, "rank": ranks.astype("Int64"), **sums})
