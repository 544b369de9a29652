"""Models the costs of sequence tables whose repeated ids are sent once per rank, or whose ids are divided among tiers.

Tiers are parts of a table by popularity of its rows (`tables.tiers`).
In formulas: N ids of one rank's samples, D columns.

Ids that are sent once [FBGEMM jagged_unique_indices]: the ids are sorted with their positions, which moves
`sort_bytes_per_id`; numbering the distinct ids and scattering the numbers moves 5 numbers of 8 bytes per id. The host
waits for the number of distinct ids.
Ids of tiers [`torchrec_bridge.tiered.index`]: a search among the popular ids of all tables of a module finds which ids
belong to each tier; it moves 24 numbers of 8 bytes per id, counted in the code. The host waits for three numbers.
Rows at the positions of their ids: forward, N D floats are read and written. Backward, gradients are read and added to
those of the rows that were exchanged once (3 N D), or read and written if every id has a row of its own (2 N D). The
gradients of all features are put side by side before they are added (2 N D).
"""

from collections.abc import Callable, Sequence

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.phases import Phase, Work
from neuroshard_pipeline.lab.step_groups import Group, Job, columns
from neuroshard_pipeline.tables.table import Shard

_FLOAT_BYTES, _NUMBER_BYTES = 4, 8
_UNIQUE_KERNELS, _UNIQUE_NUMBERS = 14, 5
_SPLIT_KERNELS, _SPLIT_NUMBERS, _SPLIT_SYNCS = 30, 24, 3


def search_of_ids(groups: Sequence[Group], job: Job) -> list[Work]:
    """Work that finds repeated ids among those of one module, and divides the ids among tiers."""
    of_tiers = sum(_of_rank(group, job, _ids_of_table, _is_tier) for group in groups)
    us = _search_us(of_tiers, _SPLIT_KERNELS, _SPLIT_NUMBERS * _NUMBER_BYTES, _SPLIT_SYNCS, job)
    sort_bytes = job.device.kernels.sort_bytes_per_id + _UNIQUE_NUMBERS * _NUMBER_BYTES
    for group in groups:
        if group.is_sent_once:
            us = us + _search_us(_of_rank(group, job, _ids, _any), _UNIQUE_KERNELS, sort_bytes, 1, job)
    return [Work("input_dist", us)] if us.any() else []


def search_us_per_id(device: ModelledDevice) -> float:
    """Microseconds per id of a search for repeated ids, without launches; division among tiers takes about as long."""
    return float(device.streamed_us(device.kernels.sort_bytes_per_id + _UNIQUE_NUMBERS * _NUMBER_BYTES))


def rows_at_places(group: Group, job: Job) -> tuple[list[Phase], list[Phase]]:
    """Copies of the group's rows to the positions of their ids, forward and backward."""
    floats = _of_rank(group, job, columns, _any if group.is_sent_once else _is_tier)
    if not floats:
        return [], []
    backward = 5 if group.is_sent_once else 2
    return (
        [Work("module", job.kernels_us(2 * _FLOAT_BYTES * floats))],
        [Work("module", job.kernels_us(backward * _FLOAT_BYTES * floats))],
    )


def _of_rank(group: Group, job: Job, value: Callable[[Shard], float], chosen: Callable[[Shard], bool]) -> float:
    """Sum of `value`, a number per sample, over the samples of one rank and the chosen shards without their copies."""
    total = sum(value(shard) for shard in group.shards if chosen(shard))
    return job.local_batch * total / group.copies(job)


def _ids(shard: Shard) -> float:
    """Ids per sample of the shard's rows, repeated ids included."""
    return shard.table.pooling_factor * shard.row_share


def _ids_of_table(shard: Shard) -> float:
    """As `_ids`, but a column shard counts for its share of the table's columns."""
    return _ids(shard) * shard.embedding_dim / shard.table.embedding_dim


def _any(_: Shard) -> bool:
    return True


def _is_tier(shard: Shard) -> bool:
    return shard.table.tier is not None


def _search_us(ids: float, kernels: int, bytes_per_id: float, syncs: int, job: Job) -> FloatArray:
    us = job.kernels_us(bytes_per_id * ids, kernels)
    return us + np.where(us > 0, syncs * job.host.host_sync_us, 0.0)
