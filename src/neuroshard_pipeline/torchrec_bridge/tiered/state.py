"""Weights of tables with tiers under the names, and in the row order, of the unsharded tables.

Hot rows are on every rank, host rows on every host, and cold rows are sharded by TorchRec.

Shapes: R rows of a whole table, D columns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers

#: Rows of a shard are sent in blocks of at most this many bytes.
_BLOCK_BYTES = 2**26


@dataclass(frozen=True)
class TableParts:
    """Where the rows of a table are.

    Attributes:
        key: name of the table's weights in the state of the unsharded module.
        tiers: the module of its hot and host rows.
        at: place of the table in `tiers`.
        cold_key: name of the weights of its cold rows in the state of the module of cold rows; None if it has none.
    """

    key: str
    tiers: PopularTiers
    at: int
    cold_key: str | None


class TieredState(nn.Module):
    """Adds the state of the unsharded module to a module with tiers."""

    parts: Sequence[TableParts]
    cold: Any

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collect the tables one after the other on every rank. This is a collective.

        Use it instead of `state_dict` where the memory of a host cannot hold all tables at once.

        Yields:
            The name of a table's weights in the state of the unsharded module, and the weights (R, D) in host memory.
        """
        shards = {} if self.cold is None else self.cold.state_dict()
        for parts in self.parts:
            yield parts.key, _whole_weight(parts, shards)

    def state_dict(self, *_: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:  # type: ignore[override]  # noqa: ARG002
        """The state of the unsharded module: whole tables in host memory, on every rank. This is a collective."""
        destination = {} if destination is None else destination
        for key, weight in self.whole_weights():
            destination[prefix + key] = weight
        return destination

    @torch.no_grad()
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        """Read whole tables from the state of an unsharded module; `load_state_dict` calls this."""
        _, _, missing, unexpected, errors = arguments
        shards = {} if self.cold is None else self.cold.state_dict()
        keys = {prefix + parts.key: parts for parts in self.parts}
        unexpected += [key for key in state_dict if key.startswith(prefix) and key not in keys]
        for key, parts in keys.items():
            if key not in state_dict:
                missing.append(key)
                continue
            expected = (parts.tiers.index.tables[parts.at].num_embeddings, parts.tiers.embedding_dim)
            if state_dict[key].shape != expected:
                errors.append(f"{key} has the shape {tuple(state_dict[key].shape)}, but the table has {expected}")
                continue
            _load_weight(parts, shards, state_dict[key])

    @torch.no_grad()
    def initialise(self, init_functions: Sequence[Callable[[torch.Tensor], Any]]) -> None:
        """Fill hot and host rows by the functions of their tables, and make replicas equal. This is a collective."""
        for parts, fill in zip(self.parts, init_functions, strict=True):
            index = parts.tiers.index
            width, device = parts.tiers.embedding_dim, parts.tiers.device
            if parts.tiers.hot is not None:
                ids, numbers = index.hot_ids(parts.at)
                parts.tiers.hot.weight[numbers] = _filled(fill, len(ids), width, device)
            if parts.tiers.host is not None:
                ids, rows = _own_rows(parts)
                parts.tiers.host.weight[rows] = _filled(fill, len(ids), width, device)
        for tiers in dict.fromkeys(parts.tiers for parts in self.parts):
            for replicas, group in ((tiers.hot, tiers.groups.world), (tiers.host, tiers.groups.peers)):
                if replicas is not None:
                    dist.broadcast(replicas.weight, dist.get_process_group_ranks(group)[0], group=group)


def _filled(fill: Callable[[torch.Tensor], Any], rows: int, width: int, device: torch.device) -> torch.Tensor:
    weights = torch.empty(rows, width, device=device)
    if rows:
        fill(weights)
    return weights


def _own_rows(parts: TableParts) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of the host rows of a table that this rank has, and their rows in this rank's weights."""
    host = parts.tiers.groups.host
    ids, numbers = parts.tiers.index.host_ids(parts.at)
    rows = torch.arange(numbers.start, numbers.stop, device=ids.device)
    own = (rows % host.size() == host.rank()).nonzero()[:, 0]
    return ids[own], rows[own] // host.size()


def _whole_weight(parts: TableParts, shards: dict[str, Any]) -> torch.Tensor:
    tiers, index = parts.tiers, parts.tiers.index
    whole = torch.empty(index.tables[parts.at].num_embeddings, tiers.embedding_dim)
    if tiers.hot is not None:
        ids, numbers = index.hot_ids(parts.at)
        whole[ids.cpu()] = tiers.hot.weight[numbers].detach().cpu()
    if tiers.host is not None:
        ids, numbers = index.host_ids(parts.at)
        whole[ids.cpu()] = _gathered(tiers, numbers).cpu()
    if parts.cold_key is None:
        return whole
    for (row, column), (rows, width), owner, tensor in _shards(shards[parts.cold_key]):
        step = max(1, _BLOCK_BYTES // (4 * width))
        for start in range(0, rows, step):
            end = min(start + step, rows)
            block = torch.empty(end - start, width, device=tiers.device)
            if tensor is not None:
                block.copy_(tensor[start:end])
            if owner is not None:
                dist.broadcast(block, owner, group=tiers.groups.world)
            whole[index.cold_ids(parts.at, row + start, row + end).cpu(), column : column + width] = block.cpu()
    return whole


def _gathered(tiers: PopularTiers, numbers: slice) -> torch.Tensor:
    """The host rows with these numbers, from the ranks of the host."""
    assert tiers.host is not None
    size = tiers.groups.host.size()
    first, last = numbers.start // size, -(-numbers.stop // size)
    mine = tiers.host.weight[first:last].detach().contiguous()
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine, group=tiers.groups.host)
    rows = torch.stack(gathered, dim=1).flatten(0, 1)  # row r of the host rows is on rank r % size
    return rows[numbers.start - first * size : numbers.stop - first * size]


def _load_weight(parts: TableParts, shards: dict[str, Any], whole: torch.Tensor) -> None:
    tiers, index = parts.tiers, parts.tiers.index
    if tiers.hot is not None:
        ids, numbers = index.hot_ids(parts.at)
        tiers.hot.weight[numbers] = whole[ids.to(whole.device)].to(tiers.device)
    if tiers.host is not None:
        ids, rows = _own_rows(parts)
        tiers.host.weight[rows] = whole[ids.to(whole.device)].to(tiers.device)
    if parts.cold_key is None:
        return
    for (row, column), (num_rows, width), _, tensor in _shards(shards[parts.cold_key]):
        if tensor is not None:
            ids = index.cold_ids(parts.at, row, row + num_rows).to(whole.device)
            tensor.copy_(whole[ids, column : column + width])


def _shards(weight: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int], int | None, torch.Tensor | None]]:
    """For every shard of a table its offsets, its sizes, its rank, and its weights if this rank has them.

    For a table that every rank has, the rank is None.
    """
    if not hasattr(weight, "local_shards"):
        yield (0, 0), tuple(weight.shape), None, weight.detach()
        return
    own = {tuple(shard.metadata.shard_offsets): shard.tensor.detach() for shard in weight.local_shards()}
    for shard in weight.metadata().shards_metadata:
        offsets = tuple(shard.shard_offsets)
        yield offsets, tuple(shard.shard_sizes), shard.placement.rank(), own.get(offsets)
