"""Costs of collectives of a modelled cluster (`lab.network`): modelled, not measured.

Shape letters: N samples of one world size, W ranks.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.network import NetworkParams, collective_us, rank_costs_ms
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import CommSample, ReductionSample

_BYTES_PER_FLOAT = 4
#: Number of messages computed at the same time, which limits an array to 32 MiB.
_MESSAGES_AT_ONCE = 2**22


class TopologyParams(Parameters):
    """The cluster of the communication backend `topology`.

    Attributes:
        preset: name of a modelled cluster (`lab.network_presets`); null if `cluster` is given.
        ranks_per_host: number of ranks of a host of the preset; null for that of the shipped cluster.
        cluster: the parameters of another cluster, as `make fit-network` prints them; null with a preset.
    """

    preset: str | None
    ranks_per_host: int | None = Field(ge=1)
    cluster: NetworkParams | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.preset is None) == (self.cluster is None):
            raise ValueError("give preset or cluster, and null for the other")
        if self.preset is not None:
            try:
                network_preset(self.preset)
            except MeasurementError as error:
                raise ValueError(str(error)) from error
        return self

    @property
    def network(self) -> NetworkParams:
        """The cluster."""
        return self.cluster or network_preset(str(self.preset), self.ranks_per_host)

    @property
    def facts(self) -> dict[str, object]:
        """Name of the preset and parameters of the cluster, for `measure.hardware`."""
        return {"preset": self.preset, **self.network.model_dump()}


def require_topology(params: TopologyParams | None) -> TopologyParams:
    """The cluster of the backend `topology`.

    Raises:
        MeasurementError: no cluster was given.
    """
    if params is None:
        raise MeasurementError("backend topology needs the cluster's parameters (topology); or use gloo or nccl")
    return params


def topology_costs(samples: Sequence[CommSample], params: NetworkParams) -> pd.DataFrame:
    """Modelled costs of every rank, in the same columns as measured costs.

    Returns:
        `sample_id, rank, forward_ms, backward_ms, spread_ms, error` by sample and rank; the last two are null.
    """
    by_world = defaultdict(list)
    for index, sample in enumerate(samples):
        by_world[sample.world_size].append(index)
    frames = []
    for world_size, indices in by_world.items():
        step = max(1, _MESSAGES_AT_ONCE // world_size**2)
        for start in range(0, len(indices), step):
            chosen = indices[start : start + step]
            frames.append(
                _frame([samples[index] for index in chosen], params).assign(order=np.repeat(chosen, world_size))
            )
    if not frames:
        return _frame([], params)
    return pd.concat(frames).sort_values("order", kind="stable").drop(columns="order").reset_index(drop=True)


def topology_reduction_costs(samples: Sequence[ReductionSample], params: NetworkParams) -> pd.DataFrame:
    """Modelled costs in the columns of `CommCampaign.reduction_costs`; no sample fails."""
    us = [float(collective_us(s.collective, s.size_bytes, s.world_size, s.hosts, params)) for s in samples]
    return pd.DataFrame(
        {
            "sample_id": pd.Series([sample.sample_id for sample in samples], dtype=object),
            "cost_ms": np.array(us, dtype=np.float64) / 1e3,
            "spread_ms": np.full(len(samples), np.nan),
            "error": np.full(len(samples), None, dtype=object),
        }
    )


def _frame(samples: Sequence[CommSample], params: NetworkParams) -> pd.DataFrame:
    """Costs of samples that have the same world size."""
    world_size = samples[0].world_size if samples else 0
    shape = (len(samples), world_size)
    dim_sums = np.array([sample.dim_sums for sample in samples], dtype=np.float64).reshape(shape)
    skew_ms = np.array([sample.start_skew_ms for sample in samples], dtype=np.float64).reshape(shape)
    batch_sizes = np.array([sample.batch_size for sample in samples], dtype=np.int64)
    message_bytes = _message_bytes(dim_sums, batch_sizes)
    forward_ms = rank_costs_ms(message_bytes, skew_ms, params)
    backward_ms = rank_costs_ms(message_bytes.transpose(0, 2, 1), np.zeros(shape), params)
    return pd.DataFrame(
        {
            "sample_id": np.repeat([sample.sample_id for sample in samples], world_size).astype(object),
            "rank": np.tile(np.arange(world_size), len(samples)),
            "forward_ms": forward_ms.reshape(-1),
            "backward_ms": backward_ms.reshape(-1),
            "spread_ms": np.full(forward_ms.size, np.nan),
            "error": np.full(forward_ms.size, None, dtype=object),
        }
    )


def _message_bytes(dim_sums: np.ndarray, batch_sizes: np.ndarray) -> np.ndarray:
    """Bytes that rank i sends to rank j in the forward all-to-all, (N, W, W): i's columns for j's part of the batch."""
    world_size = dim_sums.shape[1]
    share, rest = np.divmod(batch_sizes, max(world_size, 1))
    split = share[:, None] + (np.arange(world_size) < rest[:, None])  # (N, W)
    return _BYTES_PER_FLOAT * dim_sums[:, :, None] * split[:, None, :]
