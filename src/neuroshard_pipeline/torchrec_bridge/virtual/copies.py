"""A collective of gloo on copies in host memory, because gloo moves no data of a GPU."""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether gloo can move a tensor itself."""
    return tensor.device.type == "cpu"


@final
class HostCollective:
    """A collective that runs on copies of the tensors that are not in host memory; `call` starts it on the host.

    It writes its first argument and reads its second. If that holds no tensor, it reads the first as well.
    """

    def __init__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._given: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        in_place = not any(isinstance(each, torch.Tensor) for each in tree_leaves(arguments[1:2]))
        copied = [
            tree_map_only(torch.Tensor, partial(self._copied, at == 0, at > 0 or in_place), each)
            for at, each in enumerate(arguments)
        ]
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        self.work = call(*copied, **named)

    def give_back(self) -> None:
        """Copy the results to the tensors that the collective got; only the first call does."""
        for given, copy in zip(self._given, self._copies, strict=False):
            given.data.copy_(copy, non_blocking=True)
        self._copies = []

    def future(self) -> Any:
        """A future of the results, which are there; that of gloo would hold the copies."""
        if not self._given:
            return self.work.get_future()
        future: Any = torch.futures.Future(devices=list({each.device for each in self._given if each.is_cuda}))
        future.set_result(self._given)
        return future

    def _copied(self, is_written: bool, is_read: bool, tensor: torch.Tensor) -> torch.Tensor:
        if is_on_host(tensor):
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        if is_read:
            copy.copy_(tensor.data, non_blocking=True)
        if is_written:
            self._given.append(tensor)
            self._copies.append(copy)
        return copy
