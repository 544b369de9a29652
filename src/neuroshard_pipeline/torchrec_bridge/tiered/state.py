"""Weights of tables with tiers under the names, and in the row order, of the unsharded tables.

Hot rows are on every rank, host rows on every host, and cold rows are sharded by TorchRec.

Shapes: R rows of a whole table, D columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers

#: Rows of a shard are sent in blocks of at most this many bytes.
_BLOCK_BYTES = 2**26


@dataclass(frozen=True)
class TableParts:
    """Where the rows of a table are: at place `at` of the module of hot and host rows, and in that of the cold rows.

    The keys name its weights in the state of the unsharded module, and in that of the module of cold rows (None without
    cold rows).
    """

    key: str
    tiers: PopularTiers
    at: int
    cold_key: str | None


class ColdShard(NamedTuple):
    """A shard of the cold rows: first row and column, numbers of rows and columns, its rank, and its values.

    A shard that every rank has belongs to no rank. Values are None on ranks that do not have the shard.
    """

    offsets: tuple[int, int]
    sizes: tuple[int, int]
    owner: int | None
    values: torch.Tensor | None


@dataclass(frozen=True)
class StoredRows:
    """Tensors of this rank that hold the values of a table's rows: weights, or a state of their optimizer.

    Those of hot and host rows are of all tables in `TableParts.tiers`, None without such rows. `width` counts the
    values per row.
    """

    hot: torch.Tensor | None
    host: torch.Tensor | None
    cold: Sequence[ColdShard]
    width: int


class TieredState(nn.Module):
    """Lets a module with tiers save and load its weights as the state of the unsharded module."""

    parts: Sequence[TableParts]
    tiers: PopularTiers
    cold: Any

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collect the tables one after the other on every rank. This is a collective.

        Use it instead of `state_dict`, which copies all tables for every rank, if a host lacks memory for these copies.

        Yields:
            The name of a table's weights in the state of the unsharded module, and the weights (R, D) in host memory.
        """
        shards = {} if self.cold is None else self.cold.state_dict()
        for parts in self.parts:
            yield parts.key, whole_rows(parts, _weights(parts, shards))

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
            load_rows(parts, _weights(parts, shards), state_dict[key])

    def take_weights(self, unsharded: nn.Module, init_functions: Sequence[Callable[[torch.Tensor], Any]]) -> None:
        """Take the weights of an unsharded module; if one is on the meta device, the tables' functions fill all rows.

        This is a collective.
        """
        if any(weight.is_meta for weight in unsharded.parameters()):
            self._initialise(init_functions)
        else:
            self.load_state_dict(unsharded.state_dict())

    @torch.no_grad()
    def _initialise(self, init_functions: Sequence[Callable[[torch.Tensor], Any]]) -> None:
        """Fill hot and host rows by the functions of their tables, and make replicas equal."""
        for parts, fill in zip(self.parts, init_functions, strict=True):
            if self.tiers.hot is not None:
                ids, numbers = self.tiers.index.hot_ids(parts.at)
                self.tiers.hot.weight[numbers] = _filled(fill, len(ids), self.tiers)
            if self.tiers.host is not None:
                ids, rows = _own_rows(parts)
                self.tiers.host.weight[rows] = _filled(fill, len(ids), self.tiers)
        groups = self.tiers.groups
        for replicas, group in ((self.tiers.hot, groups.world), (self.tiers.host, groups.peers)):
            if replicas is not None:
                dist.broadcast(replicas.weight, dist.get_process_group_ranks(group)[0], group=group)


def _filled(fill: Callable[[torch.Tensor], Any], rows: int, tiers: PopularTiers) -> torch.Tensor:
    weights = torch.empty(rows, tiers.embedding_dim, device=tiers.device)
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


def _weights(parts: TableParts, shards: Mapping[str, Any]) -> StoredRows:
    """The weights of a table; `shards` maps names to TorchRec's sharded weights."""
    replicated = (parts.tiers.hot, parts.tiers.host)
    hot, host = (None if replicas is None else replicas.weight.detach() for replicas in replicated)
    cold = None if parts.cold_key is None else shards[parts.cold_key]
    return StoredRows(hot, host, () if cold is None else tuple(shards_of(cold)), parts.tiers.embedding_dim)


def whole_rows(parts: TableParts, stored: StoredRows) -> torch.Tensor:
    """Values (R, D) of all rows of a table, in the order of the table and in host memory. This is a collective."""
    tiers, index = parts.tiers, parts.tiers.index
    whole = torch.empty(index.tables[parts.at].num_embeddings, stored.width)
    if stored.hot is not None:
        ids, numbers = index.hot_ids(parts.at)
        whole[ids.cpu()] = stored.hot[numbers].cpu()
    if stored.host is not None:
        ids, numbers = index.host_ids(parts.at)
        whole[ids.cpu()] = _gathered(tiers, stored.host, numbers).cpu()
    for (row, column), (rows, width), owner, tensor in stored.cold:
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


def _gathered(tiers: PopularTiers, host: torch.Tensor, numbers: slice) -> torch.Tensor:
    """The host rows with these numbers, gathered from the ranks of the host; `host` holds this rank's rows."""
    size = tiers.groups.host.size()
    first, last = numbers.start // size, -(-numbers.stop // size)
    mine = host[first:last].contiguous()
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine, group=tiers.groups.host)
    rows = torch.stack(gathered, dim=1).flatten(0, 1)  # row r of the host rows is on rank r % size
    return rows[numbers.start - first * size : numbers.stop - first * size]


def load_rows(parts: TableParts, stored: StoredRows, whole: torch.Tensor) -> None:
    """Fill this rank's rows of a table from the values (R, D) of all rows."""
    tiers, index = parts.tiers, parts.tiers.index
    if stored.hot is not None:
        ids, numbers = index.hot_ids(parts.at)
        stored.hot[numbers] = whole[ids.to(whole.device)].to(tiers.device)
    if stored.host is not None:
        ids, rows = _own_rows(parts)
        stored.host[rows] = whole[ids.to(whole.device)].to(tiers.device)
    for (row, column), (num_rows, width), _, tensor in stored.cold:
        if tensor is not None:
            ids = index.cold_ids(parts.at, row, row + num_rows).to(whole.device)
            tensor.copy_(whole[ids, column : column + width])


def shards_of(weight: Any, values: Sequence[torch.Tensor] | None = None) -> Iterator[ColdShard]:
    """The shards of TorchRec's weights of a table.

    `values` are tensors of this rank's shards, in their order, to yield in place of weights; None for the weights.
    """
    if not hasattr(weight, "local_shards"):
        yield ColdShard((0, 0), tuple(weight.shape), None, weight.detach() if values is None else values[0])
        return
    local = weight.local_shards()
    tensors = [shard.tensor for shard in local] if values is None else values
    own = {tuple(shard.metadata.shard_offsets): of.detach() for shard, of in zip(local, tensors, strict=True)}
    for shard in weight.metadata().shards_metadata:
        offsets = tuple(shard.shard_offsets)
        yield ColdShard(offsets, tuple(shard.shard_sizes), shard.placement.rank(), own.get(offsets))
