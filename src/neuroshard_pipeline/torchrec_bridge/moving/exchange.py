"""Moves a model to another plan in the same processes: every rank sends the rows and columns that others lack."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from neuroshard_pipeline.torchrec_bridge.moving.parts import Optimizers, Part, parts_of
from neuroshard_pipeline.torchrec_bridge.moving.wanted import Box, check, described, prepared, wanted

#: Bytes that a rank sends or receives in one all-to-all, by type of device. On a CPU, such buffers stay in its caches.
_ROUND_BYTES = {"cpu": 2**23, "cuda": 2**28}

#: Parts by the names of their tensors.
_ByName = dict[str, list[Part]]


class _Transfer(NamedTuple):
    """A rectangle that a rank sends to another one, or keeps."""

    name: str
    source: int
    target: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def part(self, number: int, parts: int) -> "_Transfer":
        """One of so many parts of the rows, which may be empty."""
        first, end = (self.sizes[0] * at // parts for at in (number, number + 1))
        offsets = (self.offsets[0] + first, *self.offsets[1:])
        return self._replace(offsets=offsets, sizes=(end - first, *self.sizes[1:]))


@torch.no_grad()
def move(
    model: Any, new_model: Any, optimizers: Optimizers = (), new_optimizers: Optimizers = (), new: bool = False
) -> int:
    """Fill a model and its optimizers from one with another plan. Every rank calls it.

    `model` stays as it is: if the move fails, its training can go on. Until it is deleted, both need memory.

    Args:
        model: what `DistributedModelParallel` returned for the present plan.
        new_model: what it returned for the new plan, in the same process group.
        optimizers: the optimizers of the dense network and of replicated tables of `model`.
        new_optimizers: those of `new_model`.
        new: whether tables and rows that `model` lacks keep their initial values.

    Returns:
        The most bytes that a rank received or sent.

    Raises:
        PlanError: as for `parts_of` and `wanted.check`.
    """
    have, theirs = described(lambda: parts_of(model, optimizers))
    own, ours = described(lambda: prepared(new_model, new_optimizers, theirs.wholes))
    check(ours.wholes, theirs.wholes, new, "the present model")
    needed, blends = wanted(own, theirs.wholes)
    transfers = list(_transfers(theirs.boxes, described(lambda: needed)[1].boxes))
    dtypes = {name: whole.dtype for name, whole in theirs.wholes.items()}
    most, both = _most_bytes(transfers, dtypes), (_by_name(have), _by_name(needed))
    rounds = max(-(-most // _ROUND_BYTES[new_model.device.type]), 1)
    for dtype in dict.fromkeys(dtypes[each.name] for each in transfers):
        of_type = [each for each in transfers if dtypes[each.name] == dtype]
        buffers = torch.empty(2, 0, dtype=dtype, device=new_model.device)
        for number in range(rounds):
            buffers = _exchange([each.part(number, rounds) for each in of_type], *both, buffers)
    for blend in blends:
        blend.mix()
    return most


def _most_bytes(transfers: list[_Transfer], dtypes: Mapping[str, torch.dtype]) -> int:
    """The most bytes that a rank receives or sends."""
    ports: dict[tuple[bool, int], int] = defaultdict(int)
    for each in transfers:
        for port in ((True, each.source), (False, each.target)) if each.source != each.target else ():
            ports[port] += math.prod(each.sizes) * dtypes[each.name].itemsize
    return max(ports.values(), default=0)


def _by_name(parts: list[Part]) -> _ByName:
    found = defaultdict(list)
    for part in parts:
        found[part.name].append(part)
    return found


def _transfers(have: list[list[Box]], needed: list[list[Box]]) -> Iterator[_Transfer]:
    """Where every rank gets what it needs, in an order that is the same on all ranks."""
    owners: dict[str, dict[Box, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, boxes in enumerate(have):
        for box in boxes:
            owners[box[0]][box].append(rank)
    for target, boxes in enumerate(needed):
        for box in boxes:
            known = owners[box[0]]
            for other in [box] if box in known else known:
                offsets, sizes = _common(box, other)
                if 0 not in sizes:
                    ranks = known[other]
                    source = target if target in ranks else ranks[target % len(ranks)]
                    yield _Transfer(box[0], source, target, offsets, sizes)


def _common(one: Box, other: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of the rectangle that two rectangles have in common; a size is 0 if they have none."""
    firsts = tuple(map(max, one[1], other[1]))
    ends = [min(a + m, b + n) for a, m, b, n in zip(*one[1:], *other[1:], strict=True)]
    return firsts, tuple(max(end - first, 0) for first, end in zip(firsts, ends, strict=True))


def _exchange(transfers: list[_Transfer], have: _ByName, needed: _ByName, buffers: torch.Tensor) -> torch.Tensor:
    """Copy what stays on this rank, and exchange the rest in one all-to-all; the buffers may become larger."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sent: list[list[torch.Tensor]] = [[] for _ in range(world)]
    received: list[list[torch.Tensor]] = [[] for _ in range(world)]
    for each in (each for each in transfers if each.sizes[0]):
        if each.source == rank:
            sent[each.target].append(_view(have[each.name], each))
        if each.target == rank:
            received[each.source].append(_view(needed[each.name], each))
    for mine, place in zip(sent[rank], received[rank], strict=True):
        place.copy_(mine)
    sent[rank] = received[rank] = []
    out, into = ([sum(view.numel() for view in views) for views in of] for of in (sent, received))
    if max(sum(out), sum(into)) > buffers.shape[1]:
        buffers = buffers.new_empty(2, max(sum(out), sum(into)))
    packed, buffer = buffers[0, : sum(out)], buffers[1, : sum(into)]
    for values, view in _pairs(packed, sent):
        values.copy_(view)
    dist.all_to_all_single(buffer, packed, into, out)
    for values, view in _pairs(buffer, received):
        view.copy_(values)
    return buffers


def _pairs(buffer: torch.Tensor, views: list[list[torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each view, and its part of the buffer in the same shape."""
    ordered = [view for of in views for view in of]
    for values, view in zip(buffer.split([view.numel() for view in ordered]), ordered, strict=True):
        yield values.view(view.shape), view


def _view(parts: list[Part], each: _Transfer) -> torch.Tensor:
    """The values of a rectangle in the part that contains it."""
    for part in parts:
        firsts = [offset - first for offset, first in zip(each.offsets, part.offsets, strict=True)]
        ends = [first + size for first, size in zip(firsts, each.sizes, strict=True)]
        if all(first >= 0 for first in firsts) and all(map(int.__le__, ends, part.tensor.shape)):
            return part.tensor[tuple(map(slice, firsts, ends))]
    raise AssertionError("a rank has what the others were told")
