"""Times FBGEMM's fused table-batched lookup on the CPU, forward and backward apart.

Shape letters: N ids of a sample, B batch size, D sum of the widths of its shards.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.measurement.protocol import Timing
from neuroshard_pipeline.measurement.workers import settle_on_core
from neuroshard_pipeline.tables.ids import TableIds, draw_ids
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

#: Ids of this many bytes are kept between visits; at the scaled-down CPU profile that is every table's.
ID_CACHE_BYTES = 2**30
#: Operators kept between visits (building one takes 2 ms, one takes about 60 kB).
OPERATOR_CACHE_SIZE = 4096
#: Visits between two timings of the reference probe: close enough to see a disturbance of a tenth of a second.
PROBE_EVERY = 10
#: Starts of weights are multiples of this many floats: a cache line.
ALIGNMENT_FLOATS = 16

LEARNING_RATE = 1e-6  # a real update, small enough that weights stay normal floats over a whole campaign
_INITIAL_WEIGHT = 0.01
_PROBE_BATCH = 512


class FbgemmCpuBench:
    """Times samples one after the other on one core's kernels.

    All samples share one weight arena: an operator is built around a view of it, so that no sample allocates or
    initialises weights. Ids are drawn once per table. The operator is FBGEMM's own training module, as TorchRec
    calls it, so that its fixed cost per call (about 0.1 ms) is part of the cost as it is in training.

    Raises:
        MeasurementError: FBGEMM is missing or the arena cannot be allocated.
    """

    def __init__(self, params: ComputeMeasureParams, seed: int) -> None:
        torch.set_num_threads(params.threads)
        self._params = params
        self._seed = seed
        self._fbgemm = _fbgemm()
        self._weights = _allocate(params.arena_bytes)
        rowwise = params.optimizer == "rowwise_adagrad"
        # One state per row of at least four columns; kept at the same relative place as the weights.
        self._momentum = torch.zeros(self._weights.numel() // 4 if rowwise else 0)
        self._at = 0
        self._operators: OrderedDict[tuple[tuple[int, int], ...], torch.nn.Module] = OrderedDict()
        self._ids: OrderedDict[tuple[object, ...], TableIds] = OrderedDict()
        self._id_bytes = 0
        self._ones = torch.ones(0)
        self._probe_sample = _probe_sample()

    def measure(self, samples: Sequence[ComputeSample]) -> list[Timing]:
        """Visit every sample once, in the given order; a failure becomes a timing with an error."""
        timings = []
        probe_ms = float("nan")
        gc.collect()
        gc.disable()  # a collection inside an iteration would be timed
        try:
            for position, sample in enumerate(samples):
                if position % PROBE_EVERY == 0:
                    probe_ms = sum(self._visit(self._probe_sample))
                timings.append(self._timing(sample, probe_ms))
        finally:
            gc.enable()
        return timings

    def run_once(
        self, sample: ComputeSample, weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Run one forward and backward with given weights and a gradient of ones.

        Args:
            sample: what to look up.
            weights: one (num_embeddings, width) tensor per shard; not changed.

        Returns:
            The output (B, D) and the updated weights, one tensor per shard.
        """
        operator = self._operator(sample)
        self._place(operator, sample, self._at)
        place = operator.weights_host.data
        before = place.clone()
        place.copy_(torch.cat([weight.reshape(-1) for weight in weights]))
        output = operator(*self._inputs(sample))
        output.backward(self._gradient(output.shape))
        updated = place.clone().split([weight.numel() for weight in weights])
        place.copy_(before)
        return output.detach(), [new.view_as(old) for new, old in zip(updated, weights, strict=True)]

    def _timing(self, sample: ComputeSample, probe_ms: float) -> Timing:
        start = time.perf_counter()
        forward_ms = backward_ms = float("nan")
        error = None
        try:
            forward_ms, backward_ms = self._visit(sample)
        except (RuntimeError, MemoryError, MeasurementError, ValueError, IndexError) as problem:
            error = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return Timing(forward_ms, backward_ms, probe_ms, time.perf_counter() - start, error)

    def _visit(self, sample: ComputeSample) -> tuple[float, float]:
        """Forward and backward cost of one visit, ms."""
        operator = self._operator(sample)
        ids, offsets = self._inputs(sample)
        for _ in range(self._params.warmup_iterations):
            self._iterate(operator, sample, ids, offsets)
        timed = [self._iterate(operator, sample, ids, offsets) for _ in range(self._params.iterations)]
        return self._params.protocol.of_visit(timed)

    def _iterate(
        self, operator: Any, sample: ComputeSample, ids: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[float, float]:
        """One forward and backward, ms each."""
        if self._params.cache_treatment == "cold_rows":
            self._place(operator, sample, self._at)
        start = time.perf_counter_ns()
        output = operator(ids, offsets)  # (B, D)
        middle = time.perf_counter_ns()
        gradient = self._gradient(output.shape)
        resumed = time.perf_counter_ns()
        output.backward(gradient)
        end = time.perf_counter_ns()
        return (middle - start) / 1e6, (end - resumed) / 1e6

    def _place(self, operator: Any, sample: ComputeSample, at: int) -> None:
        """Lay the operator's weights and optimizer state at float `at` of the arena, or at its start."""
        floats = _floats(sample)
        at = at if at + floats <= self._weights.numel() else 0
        operator.weights_host.data = self._weights[at : at + floats]
        if self._momentum.numel():
            rows = sum(shard.table.num_embeddings for shard in sample.shards)
            operator.momentum1_host.data = self._momentum[at // 4 : at // 4 + rows]
        self._at = at + -(-floats // ALIGNMENT_FLOATS) * ALIGNMENT_FLOATS

    def _operator(self, sample: ComputeSample) -> Any:
        """The sample's fused lookup, built at most once."""
        if any(shard.table.data_type != "fp32" for shard in sample.shards):
            raise MeasurementError("the arena holds 32-bit floats; only tables of data_type fp32 are measured")
        needed, available = 4 * _floats(sample), 4 * self._weights.numel()
        if needed > available:
            raise MeasurementError(f"out of memory: the weights need {needed} bytes, the arena has {available}")
        shape = tuple((shard.table.num_embeddings, shard.embedding_dim) for shard in sample.shards)
        operator = self._operators.pop(shape, None)
        if operator is None:
            operator = self._build(shape)
        self._operators[shape] = operator
        if len(self._operators) > OPERATOR_CACHE_SIZE:
            self._operators.popitem(last=False)
        return operator

    def _build(self, shape: tuple[tuple[int, int], ...]) -> Any:
        fbgemm = self._fbgemm
        buffers = {"weights": self._weights[: sum(rows * width for rows, width in shape)]}
        if self._momentum.numel():
            buffers["momentum1"] = self._momentum[: sum(rows for rows, _ in shape)]
        host, cpu = fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU
        return fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, width, host, cpu) for rows, width in shape],
            optimizer=fbgemm.OPTIMIZERS[self._params.optimizer],
            learning_rate=LEARNING_RATE,
            preallocated_host_buffers=buffers,
        )

    def _inputs(self, sample: ComputeSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids (N,) and offsets (tables * B + 1,) of the fused lookup."""
        drawn = [self._table_ids(shard, sample.batch_size) for shard in sample.shards]
        starts = np.cumsum([0] + [len(ids.indices) for ids in drawn])
        offsets = [ids.offsets[:-1] + start for ids, start in zip(drawn, starts, strict=False)]
        indices = np.concatenate([ids.indices for ids in drawn])
        return torch.from_numpy(indices), torch.from_numpy(np.concatenate([*offsets, starts[-1:]]))

    def _table_ids(self, shard: Shard, batch_size: int) -> TableIds:
        table = shard.table
        key = (table.name, table.num_embeddings, table.pooling_factor, table.unique_rows, table.reuse, batch_size)
        ids = self._ids.pop(key, None)
        if ids is None:
            ids = draw_ids(with_profile(table, batch_size), batch_size, self._seed)
            self._id_bytes += ids.indices.nbytes + ids.offsets.nbytes
        self._ids[key] = ids
        while self._id_bytes > ID_CACHE_BYTES and len(self._ids) > 1:
            _, dropped = self._ids.popitem(last=False)
            self._id_bytes -= dropped.indices.nbytes + dropped.offsets.nbytes
        return ids

    def _gradient(self, shape: torch.Size) -> torch.Tensor:
        """Ones of the given shape, a view of one growing buffer."""
        if self._ones.numel() < shape.numel():
            self._ones = torch.ones(shape.numel())
        return self._ones[: shape.numel()].view(shape)


def _fbgemm() -> ModuleType:
    try:
        return importlib.import_module("neuroshard_pipeline.measurement.fbgemm")
    except ImportError as problem:
        raise MeasurementError(
            f"backend fbgemm_cpu needs fbgemm_gpu, which cannot be imported ({problem}); "
            "install the project with the extra [cpu]"
        ) from problem


def _allocate(num_bytes: int) -> torch.Tensor:
    try:
        return torch.full((num_bytes // 4,), _INITIAL_WEIGHT)
    except RuntimeError as problem:
        raise MeasurementError(f"cannot allocate an arena of arena_bytes = {num_bytes}; lower it") from problem


def _floats(sample: ComputeSample) -> int:
    """Weights of a sample, as 32-bit floats."""
    return sum(shard.table.num_embeddings * shard.embedding_dim for shard in sample.shards)


def _probe_sample() -> ComputeSample:
    """The reference: four tables of mixed shape that take about a millisecond; it fits the smallest arena allowed."""
    shapes = ((4_000, 64, 8.0), (10_000, 16, 20.0), (1_000, 128, 4.0), (8_000, 32, 12.0))
    tables = [Table(f"reference-{rows}", rows, width, pooling) for rows, width, pooling in shapes]
    return ComputeSample("reference", _PROBE_BATCH, tuple(whole(table) for table in tables))


def set_up_worker(
    rank: int, worker: int, samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int
) -> Callable[[Sequence[int]], list[Timing]]:
    """What one compute worker process runs: build the bench, then measure samples by index."""
    settle_on_core(rank + worker)
    bench = FbgemmCpuBench(params, seed)
    gc.freeze()  # what lives as long as the worker need not be collected between stretches
    return lambda indices: bench.measure([samples[index] for index in indices])
