"""Copies of a collective's tensors in host memory, because gloo moves no data of a GPU."""

from typing import Any, final

import torch


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether gloo can move a tensor itself."""
    return tensor.device.type == "cpu"


@final
class HostCopies:
    """Copies of the tensors that a collective gets; a tensor in host memory stands for itself.

    A collective writes its first argument and reads its second. If that holds no tensor, it reads the first as well.

    Attributes:
        arguments: the arguments for gloo.
    """

    def __init__(self, *arguments: Any) -> None:
        self._given: list[torch.Tensor] = []
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        in_place = not any(_holds_tensor(each) for each in arguments[1:2])
        self.arguments = [self._copied(each, at == 0, at > 0 or in_place) for at, each in enumerate(arguments)]
        _finish_copies()

    def give_back(self) -> None:
        """Copy the results to the tensors that the collective got."""
        for given, copy in self._pairs:
            given.data.copy_(copy, non_blocking=True)
        self._pairs = []

    def future(self, work: Any) -> Any:
        """A future of the results, which are there; that of gloo would hold the copies."""
        if not self._given:
            return work.get_future()
        future: Any = torch.futures.Future(devices=list({each.device for each in self._given if each.is_cuda}))
        future.set_result(self._given)
        return future

    def _copied(self, argument: Any, is_written: bool, is_read: bool) -> Any:
        if isinstance(argument, list | tuple):
            return [self._copied(each, is_written, is_read) for each in argument]
        if not isinstance(argument, torch.Tensor) or is_on_host(argument):
            return argument
        copy = torch.empty(argument.shape, dtype=argument.dtype, pin_memory=argument.is_cuda)
        if is_read:
            copy.copy_(argument.data, non_blocking=True)
        if is_written:
            self._given.append(argument)
            self._pairs.append((argument, copy))
        return copy


def _holds_tensor(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(map(_holds_tensor, argument))
    return isinstance(argument, torch.Tensor)


def _finish_copies() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
