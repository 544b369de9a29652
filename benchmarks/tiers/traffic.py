"""Records what the collectives of a training step send, to whom, and how long they take."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

#: Collectives that are recorded, and whether the second tensor argument is counted; otherwise, the first one is.
_RECORDED = {
    "all_to_all_single": True,
    "all_reduce": False,
    "reduce_scatter_tensor": True,
    "all_gather_into_tensor": False,
}


@dataclass
class Collective:
    """One collective that this rank took part in.

    Attributes:
        name: name of the function in `torch.distributed`.
        dtype: type of the elements, such as `torch.float32`.
        ranks: ranks of the group, in their order.
        rank: this rank.
        sent_bytes: bytes that this rank sends to every rank of `ranks`, 0 to itself. For an all-to-all, they are its
            splits. For reductions and gathers, they are the bytes of a ring, which gloo uses and NCCL prefers for large
            buffers: every rank sends 2 * (n - 1) / n of the buffer of an all-reduce of n ranks to the next rank, and
            (n - 1) / n of the larger buffer of a reduce-scatter or an all-gather.
        total_ms: from the call to the end of the collective, including the wait for other ranks; nan while it is
            unfinished. On GPUs it is nan, or for a synchronous collective the duration of the call alone.
        waited_ms: time in which the calling thread waited for it.
    """

    name: str
    dtype: str
    ranks: tuple[int, ...]
    rank: int
    sent_bytes: tuple[float, ...]
    total_ms: float = float("nan")
    waited_ms: float = 0.0
    _started: float = field(default_factory=time.perf_counter, repr=False)

    def crossing_bytes(self, ranks_per_host: int) -> float:
        """Bytes that this rank sends to other hosts."""
        own = self.rank // ranks_per_host
        return sum(
            sent for rank, sent in zip(self.ranks, self.sent_bytes, strict=True) if rank // ranks_per_host != own
        )

    def inside_bytes(self, ranks_per_host: int) -> float:
        """Bytes that this rank sends to other ranks of its host."""
        return sum(self.sent_bytes) - self.crossing_bytes(ranks_per_host)


class _TimedWork(dist.Work):
    """A `Work` that counts the time in `wait`. TorchRec waits only for what is a `Work`."""

    def __init__(self, work: Any, record: Collective) -> None:
        super().__init__()
        self._work, self._record = work, record

    def wait(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return self._work.wait(*arguments)
        finally:
            self._record.waited_ms += 1000.0 * (time.perf_counter() - start)

    def get_future(self) -> Any:
        return self._work.get_future()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


@contextlib.contextmanager
def recorded_traffic() -> Iterator[list[Collective]]:
    """Record the collectives of `_RECORDED` that Python code of this process starts in this context.

    If all ranks have the same batch size, Python code of TorchRec and of this package starts no others in a step.
    `DistributedDataParallel`, which TorchRec uses for dense parameters and for `data_parallel` tables, starts its
    collectives in C++; they are not recorded.
    """
    calls: list[Collective] = []
    originals = {name: getattr(dist, name) for name in _RECORDED}
    for name, original in originals.items():
        setattr(dist, name, _recording(name, original, calls))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _recording(name: str, original: Callable[..., Any], calls: list[Collective]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        record = _record(name, arguments, options)
        calls.append(record)
        work = original(*arguments, **options)
        now = time.perf_counter()
        if work is None:
            record.total_ms = record.waited_ms = 1000.0 * (now - record._started)
            return None
        if dist.get_backend(options.get("group")) == "gloo":
            work.get_future().add_done_callback(lambda _: _finish(record))
        return _TimedWork(work, record)

    return call


def _finish(record: Collective) -> None:
    record.total_ms = 1000.0 * (time.perf_counter() - record._started)


def _record(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Collective:
    tensors = [each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)]
    buffer = tensors[1] if _RECORDED[name] else tensors[0]  # for a ring, the larger one
    ranks = tuple(dist.get_process_group_ranks(options.get("group") or dist.group.WORLD))
    rank, size = dist.get_rank(), buffer.numel() * buffer.element_size()
    at = ranks.index(rank)
    if name == "all_to_all_single":
        splits = _splits(arguments, options) or [len(buffer) // len(ranks)] * len(ranks)
        row_bytes = size / max(len(buffer), 1)
        sent = [row_bytes * count for count in splits]
        sent[at] = 0.0
    else:
        sent = [0.0] * len(ranks)
        rounds = 2 if name == "all_reduce" else 1
        if len(ranks) > 1:
            sent[(at + 1) % len(ranks)] = rounds * size * (len(ranks) - 1) / len(ranks)
    return Collective(name, str(buffer.dtype), ranks, rank, tuple(sent))


def _splits(arguments: tuple[Any, ...], options: dict[str, Any]) -> Sequence[int] | None:
    """The numbers of rows that this rank sends: the fourth argument of `all_to_all_single`."""
    splits = arguments[3] if len(arguments) > 3 else options.get("input_split_sizes")
    return None if splits is None else list(splits)
