"""The exchange of ids and rows among the ranks of a host.

Row r of the host rows is on the rank r % L of the L ranks of every host, as row r // L. Host rows are numbered by
popularity within a table, so all ranks get nearly the same number of ids.

Shapes: N ids of this rank, M ids that ranks of the host ask this rank for, D columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torchrec.distributed.types import Awaitable
from torchrec.streamable import Multistreamable

Value = TypeVar("Value")


class Later(Awaitable[Value]):
    """The value that `finish` returns, which is called by the first `wait`.

    `TrainPipelineSparseDist` waits for all `awaitables` of a module's input dist. Here, this object is the only one.
    """

    def __init__(self, finish: Callable[[], Value]) -> None:
        super().__init__()
        self._finish = finish
        self.awaitables = [self]

    def _wait_impl(self) -> Value:
        return self._finish()


@dataclass
class RowRequest(Multistreamable):
    """The rows that the ranks of a host ask each other for.

    This rank asks in the `order` (N,), sorted by the rank that has the rows. `asked` and `served` are the numbers of
    rows that it asks each rank for, and that each rank asks it for. `rows` (M,) are the latter, as row numbers of its
    weights.
    """

    order: torch.Tensor
    asked: list[int]
    served: list[int]
    rows: torch.Tensor

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        self.order.record_stream(stream)
        self.rows.record_stream(stream)


def requested(rows: torch.Tensor, group: dist.ProcessGroup) -> Awaitable[Awaitable[RowRequest | None]]:
    """Start to exchange the counts of host rows with the numbers `rows` (N,) inside a host.

    The first `wait` starts the exchange of these numbers, the second one ends it.
    """
    owner = rows % group.size()
    order = owner.argsort(stable=True)
    sent = (rows // group.size())[order]
    asked = owner.bincount(minlength=group.size())
    served = torch.empty_like(asked)
    counts = dist.all_to_all_single(served, asked, group=group, async_op=True)

    def exchange_ids() -> Awaitable[RowRequest | None]:
        counts.wait()
        request = RowRequest(order, asked.tolist(), served.tolist(), sent.new_empty(int(served.sum())))
        sizes = request.served, request.asked
        work = dist.all_to_all_single(request.rows, sent, *sizes, group=group, async_op=True)
        exchange = work, sent  # the ids that are sent must exist until the exchange ends

        def received() -> RowRequest:
            exchange[0].wait()
            return request

        return Later(received)

    return Later(exchange_ids)


def exchanged_rows(
    rows: torch.Tensor, request: RowRequest, group: dist.ProcessGroup, sent_as: torch.dtype = torch.float32
) -> torch.Tensor:
    """Send rows (M, D), in the format `sent_as`, to the ranks that asked for them; gradients flow back to the senders.

    Returns the rows (N, D) that this rank asked for, in the order `request.order`.
    """
    exchanged: torch.Tensor = _ExchangedRows.apply(rows, request.asked, request.served, group, sent_as)
    return exchanged


class _ExchangedRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        asked: list[int],
        served: list[int],
        group: dist.ProcessGroup,
        sent_as: torch.dtype,
    ) -> torch.Tensor:
        ctx.route = asked, served, group, sent_as
        return _sent(rows, (served, asked), group, sent_as)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        asked, served, group, sent_as = ctx.route
        return _sent(gradients[0], (asked, served), group, sent_as), None, None, None, None


def _sent(
    rows: torch.Tensor, splits: tuple[list[int], list[int]], group: dist.ProcessGroup, sent_as: torch.dtype
) -> torch.Tensor:
    """The rows that this rank receives; `splits` are the numbers of rows that it sends and receives."""
    send, receive = splits
    received = torch.empty(sum(receive), rows.shape[1], dtype=sent_as, device=rows.device)
    dist.all_to_all_single(received, rows.to(sent_as).contiguous(), receive, send, group=group)
    return received.to(rows.dtype)
