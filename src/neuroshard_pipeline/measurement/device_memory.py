"""The GPU memory that a campaign of lookups needs. It is compared with the free memory before the first visit."""

from collections.abc import Iterable
from typing import NamedTuple

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.tables.profile import batch_indices
from neuroshard_pipeline.tables.samples import ComputeSample

#: Bytes of the buffer whose reading replaces the content of the L2 cache: four times the largest one (B200: 126 MB).
FLUSH_BYTES = 2**29
#: Share of the GPU's memory for ids that are kept between visits. All other ids are read from files or drawn again.
KEPT_IDS_SHARE = 1 / 16
#: Memory that CUDA takes for its context and for the code of kernels when they first run. It is an assumption.
CODE_BYTES = 2**30
#: Floats of weights per float of optimizer state: a row has one state and at least four 16-bit weights (two floats).
#: States and weights of a sample lie at the same relative position in their arenas, so both are equally cold in caches.
FLOATS_PER_STATE = 2

_ID_BYTES = 8
#: The GPU holds the ids of every table, and the concatenation of all of them.
_COPIES_OF_IDS = 2
#: FBGEMM's backward pass (1.8, transpose_embedding_input) has these bytes per id: row number over all tables, unsorted
#: and sorted (8 + 8), bag, unsorted and sorted (4 + 4), second buffers of the sort (12), runs of equal rows (8), their
#: lengths and the sums of lengths (4 + 4). These are 52. Rows with many ids also need partial sums of gradients.
_SORT_BYTES_PER_ID = 64
_FLOAT_BYTES = 4
#: The GPU holds the outputs, their gradients, and a copy of one of these two.
_COPIES_OF_OUTPUTS = 3


class MemoryNeed(NamedTuple):
    """Bytes of GPU memory that a campaign needs, by purpose.

    Attributes:
        weights: the arena.
        states: optimizer states, if a sample needs any.
        sample: ids, sorted ids, outputs and gradients of the sample that needs most.
        sample_id: name of that sample, empty without samples.
        kept_ids: ids that are kept between visits.
        other: buffer that replaces the content of the L2 cache, context and code.
    """

    weights: int
    states: int
    sample: int
    sample_id: str
    kept_ids: int
    other: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.states + self.sample + self.kept_ids + self.other


def sample_bytes(sample: ComputeSample) -> int:
    """GPU memory that one sample needs besides weights and optimizer states.

    The output of a shard has one row per training sample and feature, or one per id if its table is not pooled.
    """
    ids = [batch_indices(shard.table.pooling_factor, sample.batch_size) for shard in sample.shards]
    offsets = sum(shard.table.num_features for shard in sample.shards) * sample.batch_size + 1
    outputs = sum(
        (num_ids if shard.table.pooling == "none" else sample.batch_size * shard.table.num_features)
        * shard.embedding_dim
        for num_ids, shard in zip(ids, sample.shards, strict=True)
    )
    return (
        _COPIES_OF_IDS * _ID_BYTES * (sum(ids) + offsets)
        + _SORT_BYTES_PER_ID * sum(ids)
        + _COPIES_OF_OUTPUTS * _FLOAT_BYTES * outputs
    )


def memory_need(samples: Iterable[ComputeSample], params: ComputeMeasureParams, device_bytes: int) -> MemoryNeed:
    """What a campaign needs; a sample whose weights exceed the arena needs nothing, because it never runs.

    Args:
        samples: samples of the campaign.
        params: parameters of the campaign.
        device_bytes: memory of the GPU.
    """
    fitting = [sample for sample in samples if sum(shard.weight_bytes for shard in sample.shards) <= params.arena_bytes]
    largest = max(fitting, key=sample_bytes, default=None)
    has_states = any(sample.optimizer != "sgd" for sample in fitting)
    return MemoryNeed(
        weights=params.arena_bytes,
        states=params.arena_bytes // FLOATS_PER_STATE if has_states else 0,
        sample=sample_bytes(largest) if largest else 0,
        sample_id=largest.sample_id if largest else "",
        kept_ids=round(KEPT_IDS_SHARE * device_bytes),
        other=FLUSH_BYTES + CODE_BYTES,
    )


def require_memory(need: MemoryNeed, free_bytes: int, device: str) -> None:
    """Refuse a campaign that needs more memory than a GPU can give it.

    Raises:
        MeasurementError: the message names every part in bytes, and the remedies.
    """
    if need.total <= free_bytes:
        return
    raise MeasurementError(
        f"the campaign needs {need.total} bytes of GPU memory, but {device} has {free_bytes} bytes for it: arena_bytes "
        f"{need.weights}, optimizer states {need.states}, sample {need.sample_id} {need.sample}, ids that are kept "
        f"{need.kept_ids}, other {need.other}. Set arena_bytes to at most {_fitting_arena(need, free_bytes)} (samples "
        "with more weights then become rows with an error), draw samples with fewer tables or a smaller batch, end "
        "other programs on this GPU, or use a larger GPU"
    )


def _fitting_arena(need: MemoryNeed, free_bytes: int) -> int:
    """The largest arena that leaves room for the rest; at least 0."""
    left = free_bytes - (need.total - need.weights - need.states)
    return max(left * need.weights // (need.weights + need.states), 0)
