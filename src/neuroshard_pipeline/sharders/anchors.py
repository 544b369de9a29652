"""Anchors: samples of the training campaign that are measured once more among the plans.

Samples and plans are measured minutes apart, and a machine that others use drifts. What anchors cost now against what
they cost then tells that drift from an error of the cost models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from neuroshard_pipeline.tables.frames import comm_samples_from_frame, compute_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

ANCHOR_COLUMNS = ["part", "sample_id", "rank", "first_ms", "again_ms"]

_COMPUTE_COLUMNS = ["sample_id", "forward_ms", "backward_ms", "error"]
_COMM_COLUMNS = ["sample_id", "rank", "forward_ms", "backward_ms", "error"]


class AnchorParams(BaseModel):
    """How many samples are measured again.

    Attributes:
        compute_samples: compute samples.
        comm_samples: communication samples, of the world sizes that the plans have.
        seed: of the choice.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    compute_samples: int = Field(ge=0)
    comm_samples: int = Field(ge=0)
    seed: int = Field(ge=0)


@dataclass(frozen=True)
class Anchors:
    """Samples of the training campaign and what they cost in it.

    Attributes:
        compute: compute samples.
        comm: communication samples.
        compute_costs: `measure.compute_costs` of the former.
        comm_costs: `measure.comm_costs` of the latter.
    """

    compute: tuple[ComputeSample, ...]
    comm: tuple[CommSample, ...]
    compute_costs: pd.DataFrame
    comm_costs: pd.DataFrame


NO_ANCHORS = Anchors((), (), pd.DataFrame(columns=_COMPUTE_COLUMNS), pd.DataFrame(columns=_COMM_COLUMNS))


def choose_anchors(
    compute: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame],
    comm: tuple[pd.DataFrame, pd.DataFrame],
    world_sizes: Sequence[int],
    params: AnchorParams,
) -> Anchors:
    """A random choice of the samples that were measured without an error.

    Args:
        compute: samples, table pool, settings of the samples and costs.
        comm: samples and costs.
        world_sizes: of collectives that will be measured anyway; others need processes of their own.
        params: how many.
    """
    rng = np.random.default_rng(params.seed)
    samples, pool, settings, costs = compute
    costs = _chosen(costs, set(samples["sample_id"]), params.compute_samples, rng)
    anchored = compute_samples_from_frame(_of(samples, costs), pool, settings) if len(costs) else []
    comm_samples, comm_costs = comm
    usable = comm_samples[comm_samples["world_size"].isin(list(world_sizes))]
    comm_costs = _chosen(comm_costs, set(usable["sample_id"]), params.comm_samples, rng)
    collectives = comm_samples_from_frame(_of(usable, comm_costs)) if len(comm_costs) else []
    return Anchors(tuple(anchored), tuple(collectives), costs, comm_costs)


def anchors_frame(
    anchors: Anchors, compute_costs: pd.DataFrame, forward_costs: pd.DataFrame, backward_costs: pd.DataFrame
) -> pd.DataFrame:
    """Both costs of every anchor: `part, sample_id, rank, first_ms, again_ms`.

    Args:
        anchors: what was measured again.
        compute_costs: of the campaign of the plans' ranks, which the compute anchors were part of.
        forward_costs: of the campaign of the plans' forward collectives, likewise.
        backward_costs: of the campaign of the backward ones.
    """
    parts = [
        _pairs("compute", anchors.compute_costs, compute_costs, ["forward_ms", "backward_ms"]),
        _pairs("forward_comm", anchors.comm_costs, forward_costs, ["forward_ms"]),
        _pairs("backward_comm", anchors.comm_costs, backward_costs, ["backward_ms"]),
    ]
    return pd.concat(parts, ignore_index=True)


def drifts(anchors: pd.DataFrame) -> dict[str, float]:
    """By which share the median anchor has become dearer, for every part of the cost that has anchors."""
    ratio = anchors["again_ms"] / anchors["first_ms"] - 1.0
    return {str(part): float(value) for part, value in ratio.groupby(anchors["part"], sort=False).median().items()}


def _chosen(costs: pd.DataFrame, known: set[str], count: int, rng: np.random.Generator) -> pd.DataFrame:
    """The costs of `count` samples of which nothing failed."""
    failed = set(costs.loc[costs["error"].notna(), "sample_id"])
    names = sorted(set(costs["sample_id"]) & known - failed)
    picked: list[str] = rng.choice(names, min(count, len(names)), replace=False).tolist() if names else []
    return costs[costs["sample_id"].isin(picked)]


def _of(samples: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    return samples[samples["sample_id"].isin(costs["sample_id"])]


def _pairs(part: str, first: pd.DataFrame, again: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    keys = [key for key in ("sample_id", "rank") if key in first and key in again]
    good = again[again["error"].isna()]
    both = first.merge(good, on=keys, suffixes=("", "_again"))
    ranks = both["rank"] if "rank" in both else pd.Series([None] * len(both), index=both.index)
    frame = pd.DataFrame(
        {
            "part": part,
            "sample_id": both["sample_id"].astype(str),
            "rank": ranks.astype("Int64"),
            "first_ms": both[columns].astype(float).sum(axis=1),
            "again_ms": both[[f"{column}_again" for column in columns]].astype(float).sum(axis=1),
        }
    )
    return frame[ANCHOR_COLUMNS]
