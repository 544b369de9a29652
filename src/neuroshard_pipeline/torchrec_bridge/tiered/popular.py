"""The hot and host rows (`tables.tiers`) of tables of one width, on this rank; shapes as in `exchange`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import Awaitable, NoWait

from neuroshard_pipeline.tables.task import DEFAULT_COMM_PRECISION
from neuroshard_pipeline.torchrec_bridge.tiered.exchange import RowRequest, exchanged_rows, requested
from neuroshard_pipeline.torchrec_bridge.tiered.groups import RankGroups
from neuroshard_pipeline.torchrec_bridge.tiered.index import TierIndex
from neuroshard_pipeline.torchrec_bridge.tiered.replicas import Replicas
from neuroshard_pipeline.torchrec_plan.comm_precision import FORMATS, format_on

#: Class and arguments of an optimizer.
Optimizer = tuple[type[torch.optim.Optimizer], Mapping[str, Any]]


@dataclass(frozen=True)
class TierOptions:
    """Options of a module with tiers.

    Attributes:
        index_dedup: whether every distinct id of this rank's samples is looked up and exchanged once, as with
            TorchRec's `use_index_dedup`, which runs on GPUs only.
        comm_precision: number format in which ranks exchange cold rows, host rows and the gradients of both: a value of
            `ShardingTask.comm_precision`; bf16 becomes fp16 on CPUs. The all_reduce that adds up gradients of hot rows
            over ranks, or of host rows over hosts, is in fp32.
        device: the device of this rank.
    """

    index_dedup: bool = False
    comm_precision: str = DEFAULT_COMM_PRECISION
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


class PopularTiers(nn.Module):
    """Weights of hot and host rows, which are zero at first, and the optimizers that update them."""

    def __init__(
        self, index: TierIndex, embedding_dim: int, groups: RankGroups, optimizer: Optimizer, options: TierOptions
    ) -> None:
        super().__init__()
        device, self._sent_as = options.device, FORMATS[format_on(options.device.type, options.comm_precision)]
        self.index, self.groups, self.embedding_dim = index, groups, embedding_dim
        self.optimizer_class = optimizer[0]
        world_size = groups.world.size()
        self.hot: Replicas | None = None
        self.host: Replicas | None = None
        if index.num_hot:
            rows = torch.zeros(index.num_hot, embedding_dim, device=device)
            self.hot = Replicas(rows, groups.world, world_size, optimizer)
        if index.num_host:
            rows = torch.zeros(-(-index.num_host // groups.host.size()), embedding_dim, device=device)
            self.host = Replicas(rows, groups.peers, world_size, optimizer)
        self._none = torch.empty(0, embedding_dim, device=device)

    def ask(self, rows: torch.Tensor) -> Awaitable[Awaitable[RowRequest | None]]:
        """Start to ask the ranks of this host for the host rows with the numbers `rows` (N,)."""
        return NoWait(NoWait(None)) if self.host is None else requested(rows, self.groups.host)

    def served_rows(self, request: RowRequest | None) -> torch.Tensor:
        """The host rows (M, D) that this rank was asked for."""
        return self._none if self.host is None or request is None else self.host(request.rows)

    def exchange(self, rows: torch.Tensor, request: RowRequest | None) -> torch.Tensor:
        """Send `rows` (M, D); returns the rows (N, D) that this rank asked for, in the order `request.order`."""
        return self._none if request is None else exchanged_rows(rows, request, self.groups.host, self._sent_as)

    def hot_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The hot rows (N, D) with the numbers `rows`."""
        return self._none if self.hot is None else self.hot(rows)

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._none.device

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of hot and of host rows."""
        return [replicas.optimizer for replicas in (self.hot, self.host) if replicas is not None]
