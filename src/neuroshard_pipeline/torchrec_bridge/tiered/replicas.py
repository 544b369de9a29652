"""Weights that several ranks hold, and their update in the backward pass.

TorchRec 1.8's own `EmbeddingCollection` cannot hold such weights on CPUs. FBGEMM 1.8's dense lookup ignores
`PoolingMode.NONE` there and returns a sum per bag. A `data_parallel` table therefore fails when TorchRec splits the
rows by features, and a `row_wise` table with the kernel `dense` on the process group of a host fails when rows are
exchanged. With the kernel `fused`, such a `row_wise` table works, but its gradients cannot be added up over hosts.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.optim.fused import EmptyFusedOptimizer


class Replicas(nn.Module):
    """Rows that all ranks of a group hold, with equal weights, which are `rows` (R, D) at first.

    The gradients of the ranks are added up as soon as they are known, while the rest of the backward pass goes on. At
    the end of the backward pass the optimizer updates the rows, as the fused optimizer of TorchRec updates sharded
    rows; it sees dense gradients. Gradients are divided by the world size, the number of ranks whose losses are
    averaged, as TorchRec divides gradients of sharded rows. Because gradients are added up by a collective, all ranks
    of the group must run the backward pass of the same lookups.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        group: dist.ProcessGroup,
        world_size: int,
        optimizer: tuple[type[torch.optim.Optimizer], Mapping[str, Any]],
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows)
        # This attribute tells `in_backward_optimizer_filter` that no other optimizer is to update the weights.
        self.weight._in_backward_optimizers = [EmptyFusedOptimizer()]  # type: ignore[attr-defined]
        self.optimizer = optimizer[0]([self.weight], **optimizer[1])
        self._group, self._world_size = group, world_size
        self._reduction: Any = None
        self.weight.register_post_accumulate_grad_hook(self._reduce)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The weights (N, D) of rows (N,)."""
        if self.weight.device.type == "cuda":
            return nn.functional.embedding(rows, self.weight)  # sorts the rows, so that few atomic additions collide
        return self.weight.index_select(0, rows)  # on CPUs its backward is several times faster

    def _load_from_state_dict(self, *_: Any) -> None:
        """Do nothing: `state.TieredState` reads whole tables and fills the rows."""

    def _reduce(self, weight: torch.Tensor) -> None:
        if self._group.size() > 1:
            self._reduction = dist.all_reduce(weight.grad, group=self._group, async_op=True)
        torch.autograd.Variable._execution_engine.queue_callback(self._update)

    def _update(self) -> None:
        if self._reduction is not None:
            self._reduction.wait()
            self._reduction = None
        if get_gradient_division() and self.weight.grad is not None:
            self.weight.grad /= self._world_size
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
