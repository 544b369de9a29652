"""The exchange of ids and rows among the ranks of a host.

Row r of the host rows is on the rank r % L of the L ranks of every host, as row r // L. Host rows are numbered by
popularity within a table, so all ranks get nearly the same number of ids.

Shapes: N ids of this rank, M ids that ranks of the host ask this rank for, D columns.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.types import Awaitable
from torchrec.streamable import Multistreamable


@dataclass
class RowRequest(Multistreamable):
    """The rows that the ranks of a host ask each other for.

    Attributes:
        order: (N,) the order in which this rank asks for rows: sorted by the rank that has them.
        asked: for each rank, the number of rows that this rank asks it for.
        served: for each rank, the number of rows that it asks this rank for.
        rows: (M,) the rows that this rank is asked for, as row numbers of its own weights.
    """

    order: torch.Tensor
    asked: list[int]
    served: list[int]
    rows: torch.Tensor

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        self.order.record_stream(stream)
        self.rows.record_stream(stream)


class CountsInFlight(Awaitable[Awaitable[RowRequest]]):
    """The exchange of the counts of ids. `wait` starts the exchange of ids and returns an awaitable of the request.

    Args:
        rows: (N,) numbers of host rows.
        group: the ranks of the host.
    """

    def __init__(self, rows: torch.Tensor, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group
        owner = rows % group.size()
        self._order = owner.argsort(stable=True)
        self._rows = (rows // group.size())[self._order]
        self._asked = owner.bincount(minlength=group.size())
        self._served = torch.empty_like(self._asked)
        self._work = dist.all_to_all_single(self._served, self._asked, group=group, async_op=True)

    def _wait_impl(self) -> Awaitable[RowRequest]:
        self._work.wait()
        return _IdsInFlight(self._order, self._rows, (self._asked.tolist(), self._served.tolist()), self._group)


class _IdsInFlight(Awaitable[RowRequest]):
    def __init__(
        self,
        order: torch.Tensor,
        rows: torch.Tensor,
        splits: tuple[list[int], list[int]],
        group: dist.ProcessGroup,
    ) -> None:
        super().__init__()
        asked, served = splits
        self._sent = rows
        self._request = RowRequest(order, asked, served, rows.new_empty(sum(served)))
        self._work = dist.all_to_all_single(self._request.rows, rows, served, asked, group=group, async_op=True)

    def _wait_impl(self) -> RowRequest:
        self._work.wait()
        return self._request


def exchanged_rows(
    rows: torch.Tensor, request: RowRequest, group: dist.ProcessGroup, sent_as: torch.dtype = torch.float32
) -> torch.Tensor:
    """Send rows to the ranks that asked for them; gradients flow back to the ranks that hold the rows.

    Args:
        rows: (M, D) the rows that this rank was asked for.
        request: the request.
        group: the ranks of the host.
        sent_as: number format of rows and gradients on the way.

    Returns:
        (N, D) the rows that this rank asked for, in the order `request.order`.
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
