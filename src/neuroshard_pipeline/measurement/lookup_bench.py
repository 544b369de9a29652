"""Times the forward and the backward pass of FBGEMM's fused table-batched lookup: the code that all devices share.

Shape letters: N ids of a sample, B batch size, D sum of the widths of all features, each as wide as its shard.
"""

import gc
import importlib
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.id_files import Batch, files_of
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.measurement.timing import Timing
from neuroshard_pipeline.tables.ids import feature_lengths
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard, Table, whole

#: Number of operators kept between visits: more than the default parameters need. An operator takes 2 ms to build and
#: occupies about 60 kB.
OPERATOR_CACHE_SIZE = 8192
#: Oldest generation that is garbage-collected before a chunk. A full collection scans all operators and takes 0.3 s.
_YOUNG_GENERATIONS = 1
#: Duration of the untimed visits at the start of a chunk. Without them, a worker that has just waited for its next
#: chunk overestimates the first sample by 5 %; the effect is gone by the tenth sample.
SETTLING_S = 0.02
#: Floats of weights per float of state, as a row of four 16-bit weights has; states lie where the weights lie.
_FLOATS_PER_STATE = 2
#: Weights start at a multiple of this many floats, which is a cache line.
ALIGNMENT_FLOATS = 16

#: Every backward pass updates the weights, but so little that no weight becomes subnormal or infinite in a campaign.
LEARNING_RATE = 1e-6
_INITIAL_WEIGHT = 0.01
_SETTLING_BATCH = 512
#: Errors that a sample raises in every run. A RuntimeError or MemoryError, such as a lack of memory, may not recur.
_PERMANENT = (MeasurementError, ValueError, IndexError)
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


class LookupBench(ABC):
    """Times samples one after another on one device.

    All samples share one large tensor of weights, the arena. An operator works on a view of it, so no sample has to
    initialise weights. Ids stay on the device, up to `id_cache_bytes`. The operator is FBGEMM's training module,
    which TorchRec uses too, so that a cost includes the fixed overhead of a call in training.

    Checks of the kernels may set `learning_rate` before the first sample, so that updates become visible.

    Args:
        params: timing protocol, and size of the arena.
        seed: seed of the ids.
        device: device of all tensors.
        id_cache_bytes: maximum size of the ids that are kept between visits.

    Raises:
        MeasurementError: FBGEMM is missing, or the arena cannot be allocated.
    """

    def __init__(self, params: ComputeMeasureParams, seed: int, device: torch.device, id_cache_bytes: int) -> None:
        torch.set_num_threads(params.threads)
        self._params = params
        self.learning_rate = LEARNING_RATE
        self._device = device
        self._buffers = "host" if device.type == "cpu" else "dev"  # FBGEMM's name for tensors on the device
        self._id_cache_bytes = id_cache_bytes
        self._fbgemm = _fbgemm(params.backend)
        self._weights = _allocate(params.arena_bytes, device)
        self._states = torch.zeros(0, device=device)
        self._at = 0
        self._operators: OrderedDict[tuple[object, ...], torch.nn.Module] = OrderedDict()
        self._id_files = files_of(params, seed)
        self._ids: OrderedDict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        self._id_bytes = 0
        self._ones = torch.ones(0, device=device)
        self._settling_sample = _settling_sample()

    @abstractmethod
    def _iterate(
        self, operator: Any, sample: ComputeSample, ids: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[float, float]:
        """Cost of one forward and one backward pass, ms each."""

    def measure(self, samples: Sequence[ComputeSample]) -> list[Timing]:
        """Visit every sample once, in the given order; a failure becomes a timing with an error."""
        gc.collect(_YOUNG_GENERATIONS)
        gc.disable()  # a collection within an iteration would add to its measured time
        try:
            self._settle()
            return [self._timing(sample) for sample in samples]
        finally:
            gc.enable()

    def run_once(
        self, sample: ComputeSample, weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Run one forward and backward pass with given weights and a gradient of ones.

        Args:
            sample: the lookups.
            weights: one (num_embeddings, width) tensor per shard, on the device; not changed.

        Returns:
            The output, (B, D) or without pooling (N, width), and the updated weights, one tensor per shard.
        """
        operator = self._operator(sample)
        self._place(operator, sample, self._at)
        place = getattr(operator, f"weights_{self._buffers}").data
        before = place.clone()
        place.copy_(torch.cat([weight.reshape(-1) for weight in weights]))
        output = operator(*self._inputs(sample))
        output.backward(self._gradient(output.shape))
        operator.release()
        updated = place.clone().split([weight.numel() for weight in weights])
        place.copy_(before)
        return output.detach(), [new.view_as(old) for new, old in zip(updated, weights, strict=True)]

    def _settle(self) -> None:
        """Bring the core, its caches and its clock into the state of a busy worker."""
        until = time.perf_counter() + SETTLING_S
        while time.perf_counter() < until:
            self._visit(self._settling_sample)

    def _timing(self, sample: ComputeSample) -> Timing:
        start = time.perf_counter()
        forward_ms = backward_ms = float("nan")
        error, permanent = None, False
        try:
            forward_ms, backward_ms = self._visit(sample)
        except (RuntimeError, MemoryError, *_PERMANENT) as problem:
            error = f"{type(problem).__name__}: {problem}".splitlines()[0]
            permanent = isinstance(problem, _PERMANENT)
        return Timing(forward_ms, backward_ms, time.perf_counter() - start, error, permanent)

    def _visit(self, sample: ComputeSample) -> tuple[float, float]:
        """Forward and backward cost of one visit, ms."""
        operator = self._operator(sample)
        ids, offsets = self._inputs(sample)
        try:
            for _ in range(self._params.warmup_iterations):
                self._iterate(operator, sample, ids, offsets)
            timed = [self._iterate(operator, sample, ids, offsets) for _ in range(self._params.iterations)]
        finally:
            operator.release()
        return self._params.of_visit(timed)

    def _place(self, operator: Any, sample: ComputeSample, at: int) -> None:
        """Give the operator the tensors of `_parts` at float `at`, or at float 0 if the weights do not fit at `at`."""
        floats = _floats(sample)
        at = at if at + floats <= self._weights.numel() else 0
        for name, part in self._parts(sample, at).items():
            getattr(operator, f"{name}_{self._buffers}").data = part
        self._at = at + -(-floats // ALIGNMENT_FLOATS) * ALIGNMENT_FLOATS

    def _parts(self, sample: ComputeSample, at: int) -> dict[str, torch.Tensor]:
        """Weights at float `at` of the arena, and states at the same relative place in `_states`, by FBGEMM's names."""
        weights = self._weights[at : at + _floats(sample)].view(_DTYPES[_data_type(sample)])
        if sample.optimizer == "sgd":
            return {"weights": weights}
        if not self._states.numel():
            self._states = torch.zeros(self._weights.numel() // _FLOATS_PER_STATE, device=self._device)
        first = at // _FLOATS_PER_STATE
        rows = sum(shard.table.num_embeddings for shard in sample.shards)
        return {"weights": weights, "momentum1": self._states[first : first + rows]}

    def _build(self, sample: ComputeSample) -> Any:
        """The fused lookup of a sample, which has no weights before `_place`."""
        fbgemm, on_cpu = self._fbgemm, self._device.type == "cpu"
        location = fbgemm.EmbeddingLocation.HOST if on_cpu else fbgemm.EmbeddingLocation.DEVICE
        compute_device = fbgemm.ComputeDevice.CPU if on_cpu else fbgemm.ComputeDevice.CUDA
        shapes = [(shard.table.num_embeddings, shard.embedding_dim) for shard in sample.shards]
        return fbgemm.FusedLookup(
            [(*shape, location, compute_device) for shape in shapes],
            optimizer=fbgemm.OPTIMIZERS[sample.optimizer],
            learning_rate=self.learning_rate,
            weights_precision=fbgemm.PRECISIONS[_data_type(sample)],
            pooling_mode=fbgemm.PoolingMode.NONE if _is_sequence(sample) else fbgemm.PoolingMode.SUM,
            feature_table_map=[at for at, shard in enumerate(sample.shards) for _ in range(shard.table.num_features)],
            device=self._device,
        )

    def _operator(self, sample: ComputeSample) -> Any:
        """The fused lookup of a sample, from the cache if possible."""
        if sample.optimizer not in self._fbgemm.OPTIMIZERS:
            known = " or ".join(self._fbgemm.OPTIMIZERS)
            raise MeasurementError(f"optimizer {sample.optimizer} cannot be measured; use {known}")
        needed, available = 4 * _floats(sample), 4 * self._weights.numel()
        if needed > available:
            raise MeasurementError(f"out of memory: weights of {needed} bytes, arena of {available}; raise arena_bytes")
        shape = (
            sample.optimizer,
            _data_type(sample),
            _is_sequence(sample),
            *((shard.table.num_embeddings, shard.embedding_dim, shard.table.num_features) for shard in sample.shards),
        )
        operator = self._operators.pop(shape, None)
        if operator is None:
            operator = self._build(sample)
            self._place(operator, sample, 0)
        self._operators[shape] = operator
        if len(self._operators) > OPERATOR_CACHE_SIZE:
            self._operators.popitem(last=False)
        return operator

    def _inputs(self, sample: ComputeSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids (N,) and offsets (features * B + 1,) of the fused lookup."""
        drawn = [self._table_ids(shard, sample.batch_size) for shard in sample.shards]
        bounds, start = [], 0
        for shard, (indices, offsets) in zip(sample.shards, drawn, strict=True):
            if shard.table.num_features == 1:
                bounds.append(offsets[:-1] + start)
            else:  # the ids have a random order, so that the bags of all features can take them as they come
                lengths = torch.cat(feature_lengths(offsets.diff(), shard.table.num_features))
                bounds.append(lengths.cumsum(0) - lengths + start)
            start += len(indices)
        end = torch.tensor([start], device=self._device)
        return torch.cat([indices for indices, _ in drawn]), torch.cat([*bounds, end])

    def _table_ids(self, shard: Shard, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        batch = Batch(shard.table, batch_size)
        ids = self._ids.pop(batch.content, None)
        if ids is None:
            indices, offsets = self._id_files(batch)
            ids = self._on_device(indices), self._on_device(offsets)
            self._id_bytes += _bytes(ids)
        self._ids[batch.content] = ids
        while self._id_bytes > self._id_cache_bytes and len(self._ids) > 1:
            _, dropped = self._ids.popitem(last=False)
            self._id_bytes -= _bytes(dropped)
        return ids

    def _on_device(self, numbers: IntArray) -> torch.Tensor:
        """The numbers on the device, as int64 for FBGEMM. Most files have int32, which takes less time to copy."""
        return torch.from_numpy(numbers).to(self._device).long()

    def _gradient(self, shape: torch.Size) -> torch.Tensor:
        """Ones of the given shape: a view of one buffer, which is replaced by a larger one if needed."""
        if self._ones.numel() < shape.numel():
            self._ones = torch.ones(shape.numel(), device=self._device)
        return self._ones[: shape.numel()].view(shape)


def _fbgemm(backend: str) -> ModuleType:
    try:
        return importlib.import_module("neuroshard_pipeline.measurement.fbgemm")
    except ImportError as problem:
        extra = "cuda" if backend == "fbgemm_cuda" else "cpu"
        raise MeasurementError(
            f"backend {backend} needs fbgemm_gpu, which cannot be imported ({problem}); "
            f"install the project with the extra [{extra}]"
        ) from problem


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.full((num_bytes // 4,), _INITIAL_WEIGHT, device=device)
    except RuntimeError as problem:
        raise MeasurementError(f"cannot allocate an arena of arena_bytes = {num_bytes}; lower arena_bytes") from problem


def _data_type(sample: ComputeSample) -> str:
    """Storage type of all weights of a sample; a fused lookup has only one."""
    data_types = sorted({shard.table.data_type for shard in sample.shards})
    if len(data_types) > 1:
        raise MeasurementError(f"the tables of a fused lookup need one data_type, not {' and '.join(data_types)}")
    return data_types[0]


def _is_sequence(sample: ComputeSample) -> bool:
    """Whether a sample looks up rows without summing them; one fused lookup cannot do both."""
    kinds = {shard.table.pooling == "none" for shard in sample.shards}
    if len(kinds) > 1:
        raise MeasurementError("a fused lookup cannot mix tables with pooling none and tables with pooling sum or mean")
    return kinds.pop()


def _floats(sample: ComputeSample) -> int:
    """Size of a sample's weights in 32-bit floats: a whole number, because widths are multiples of four."""
    return sum(
        shard.table.num_embeddings * shard.embedding_dim * BYTES_PER_ELEMENT[shard.table.data_type] // 4
        for shard in sample.shards
    )


def _bytes(ids: tuple[torch.Tensor, ...]) -> int:
    return sum(part.numel() * part.element_size() for part in ids)


def _settling_sample() -> ComputeSample:
    """Four different tables that take about a millisecond and fit the smallest allowed arena."""
    shapes = ((4_000, 64, 8.0), (10_000, 16, 20.0), (1_000, 128, 4.0), (8_000, 32, 12.0))
    tables = [Table(f"settling-{rows}", rows, width, pooling) for rows, width, pooling in shapes]
    return ComputeSample("settling", _SETTLING_BATCH, tuple(whole(table) for table in tables))
