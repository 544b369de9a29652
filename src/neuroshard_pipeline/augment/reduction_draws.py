"""Samples of reductions (reduce_scatter, all_gather, all_reduce): a grid of sizes for every group of ranks.

A group is a number of ranks on a number of hosts.
"""

from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from neuroshard_pipeline.augment.drawing import WorldSizes
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import REDUCTIONS, ReductionSample

_BYTES_PER_FLOAT = 4

RanksPerHost = Annotated[int, Field(ge=1, le=4096)]


class ReductionSampleParams(Parameters):
    """Parameters of the grid.

    Attributes:
        world_sizes: numbers of ranks.
        ranks_per_host: numbers of ranks per host; every world size is combined with each of them. Null: all ranks are
            on one host.
        num_sizes: number of sizes.
        min_bytes: smallest size of the whole buffer.
        max_bytes: largest size; the sizes are spaced evenly on a logarithmic scale.
    """

    world_sizes: WorldSizes
    ranks_per_host: tuple[RanksPerHost | None, ...] = Field(min_length=1)
    num_sizes: int = Field(ge=3, le=1000)
    min_bytes: int = Field(ge=1, le=2**40)
    max_bytes: int = Field(ge=1, le=2**40)


def reduction_samples(params: ReductionSampleParams) -> pd.DataFrame:
    """Samples at every point of the grid: `sample_id, collective, size_bytes, world_size, hosts`, one row per sample.

    A size is rounded to a multiple of the world size, so that every rank has an equal share of whole floats.
    """
    groups = {
        (ranks, 1 if per_host is None else -(-ranks // per_host)): None
        for per_host in params.ranks_per_host
        for ranks in params.world_sizes
    }
    grid = np.geomspace(params.min_bytes, params.max_bytes, params.num_sizes)
    samples = [
        ReductionSample(f"{collective}-{ranks}-ranks-{hosts}-hosts-{size}", collective, size, ranks, hosts)
        for ranks, hosts in groups
        for unit in [_BYTES_PER_FLOAT * ranks]  # every rank has an equal share of whole floats
        for size in dict.fromkeys(max(round(size_bytes / unit), 1) * unit for size_bytes in grid)
        for collective in REDUCTIONS
    ]
    return pd.DataFrame(samples)
