"""A process group of torch.distributed that hands every collective to gloo and logs it."""

import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from torch.autograd import Variable

from neuroshard_pipeline.host import usable_cores
from neuroshard_pipeline.torchrec_bridge.ranks import RankError, RankParams, join_ranks
from neuroshard_pipeline.torchrec_bridge.virtual.copies import HostCollective
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective, RankLog

_BACKEND = "virtual"


def join_virtual_ranks(
    rank: int, world_size: int, params: RankParams, store_file: str, ranks_per_host: int | None = None
) -> RankLog:
    """Join a group of virtual ranks, in the process of a rank; the arguments are those of `ranks.join_ranks`.

    With backend gloo, ranks share the cores, and their clock is the CPU time. With nccl, all ranks share the first GPU;
    their clock is the wall clock after all work of the GPU, and gloo moves copies in host memory.

    Returns:
        The log, which is off until the first call of its `now`.

    Raises:
        RankError: a rank has several threads.
    """
    if params.threads != 1:
        raise RankError(f"virtual ranks have one thread each, not threads {params.threads}; set threads to 1")
    cores = len(usable_cores())
    if params.compute_device == "cuda":
        log = RankLog(f"{store_file}-gpu", _gpu_s, lambda: torch.zeros(1, device="cuda"))
    else:
        log = RankLog(f"{store_file}-core-{rank % cores}" if world_size > cores else None)

    def make(options: Any, _: Any) -> LoggedGroup:
        return LoggedGroup(options, log)

    dist.Backend.register_backend(_BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    join_ranks(rank, world_size, params, store_file, ranks_per_host, f"cpu:{_BACKEND},cuda:{_BACKEND}")
    return log


def _gpu_s() -> float:
    """The wall clock after all work of this process on the GPU."""
    torch.cuda.synchronize()
    return time.perf_counter()


@final
class LoggedWork(dist.Work):
    """A collective that was started."""

    def __init__(self, collective: HostCollective, log: RankLog, index: int) -> None:
        super().__init__()
        self._collective, self._log, self._index = collective, log, index
        self._is_waited = False

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Wait until the collective is done."""
        if not self._is_waited:
            self._log.wait(self._index)
            self._is_waited = True
        with self._log.away(self._collective.give_back):
            return bool(self._collective.work.wait(timeout))

    def get_future(self) -> Any:
        """A future of the results, which are there already. The log has the wait at the end of the backward pass.

        DistributedDataParallel waits for this future in C++ at the end of the backward pass. A rank that waits there
        would hold its core.
        """
        with self._log.away(self._collective.give_back):
            self._collective.work.wait()
        if not self._is_waited:
            self._is_waited = True
            if torch._C._current_graph_task_id() >= 0:
                Variable._execution_engine.queue_callback(lambda: self._log.wait(self._index))
            else:
                self._log.wait(self._index)
        return self._collective.future()

    def is_completed(self) -> bool:
        """Whether the collective is done."""
        return bool(self._collective.work.is_completed())


class LoggedGroup(dist.ProcessGroup):
    """Hands collectives to gloo and logs them. torch.distributed calls methods of the names in `_CALLS`."""

    def __init__(self, options: Any, log: RankLog) -> None:
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
        self._log = log
        self._ranks = tuple(options.global_ranks_in_group or range(options.group_size))
        self._name, self._desc = str(options.group_id), ""

    def getBackendName(self) -> str:  # noqa: N802, D102
        return _BACKEND

    def getGroupName(self) -> str:  # noqa: N802, D102
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices of the tensors that torch.distributed makes for collectives of its own."""
        return [torch.device("cpu")]

    @property
    def group_name(self) -> Any:  # noqa: D102
        return self._name

    @property
    def group_desc(self) -> str:  # noqa: D102
        return self._desc

    def _start(self, kind: str, sent_bytes: Sequence[int], name: str, *arguments: Any, **named: Any) -> LoggedWork:
        collective = Collective(kind, self._name, self._ranks, tuple(sent_bytes))
        call = getattr(self._gloo, name)
        begun = self._log.start(collective, lambda: HostCollective(call, *arguments, **named))
        return LoggedWork(begun[0], self._log, begun[1])

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, out_splits: list[int], splits: list[int], *opts: Any
    ) -> LoggedWork:
        """An exchange of `splits[r]` rows with rank r of the group, or of equal parts if there are no splits."""
        row_bytes = given.nbytes // max(len(given), 1)
        sent = [row_bytes * rows for rows in splits] or [given.nbytes // self.size()] * self.size()
        return self._start("alltoall", sent, "alltoall_base", output, given, out_splits, splits, *opts)

    def alltoall(self, outputs: list[torch.Tensor], given: list[torch.Tensor], *opts: Any) -> LoggedWork:
        """An exchange of one tensor with every rank of the group."""
        return self._start("alltoall", [each.nbytes for each in given], "alltoall", outputs, given, *opts)


def _bytes(tensors: Any) -> int:
    """Bytes of a tensor or of nested lists of tensors."""
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_bytes, tensors))


#: Methods that torch.distributed calls: the method of gloo, the kind of the collective, and the argument that counts.
#: torch 2.13 calls `all_gather_single` and `reduce_scatter_single`, and older versions the names with an underscore.
_CALLS: dict[str, tuple[str, str, slice]] = {
    "allreduce": ("allreduce", "all_reduce", slice(1)),
    "allreduce_coalesced": ("allreduce_coalesced", "all_reduce", slice(1)),
    "allgather": ("allgather", "all_gather", slice(1)),
    "all_gather_single": ("_allgather_base", "all_gather", slice(1)),
    "_allgather_base": ("_allgather_base", "all_gather", slice(1)),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter", slice(1, 2)),
    "reduce_scatter_single": ("_reduce_scatter_base", "reduce_scatter", slice(1, 2)),
    "_reduce_scatter_base": ("_reduce_scatter_base", "reduce_scatter", slice(1, 2)),
    "broadcast": ("broadcast", "broadcast", slice(1)),
    "reduce": ("reduce", "reduce", slice(1)),
    "gather": ("gather", "gather", slice(1)),
    "scatter": ("scatter", "scatter", slice(1)),
    "barrier": ("barrier", "barrier", slice(0)),
}


def _method(name: str, kind: str, buffer: slice) -> Callable[..., LoggedWork]:
    def start(group: LoggedGroup, *arguments: Any, **named: Any) -> LoggedWork:
        return group._start(kind, (_bytes(arguments[buffer]),), name, *arguments, **named)

    return start


LoggedGroup.alltoall_base = LoggedGroup.all_to_all_single  # type: ignore[method-assign, assignment]
for _called, _how in _CALLS.items():
    setattr(LoggedGroup, _called, _method(*_how))
