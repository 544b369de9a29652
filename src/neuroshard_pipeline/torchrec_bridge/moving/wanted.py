"""What a rank needs of the tensors of a model with another plan."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.replanning.present import named
from neuroshard_pipeline.torchrec_bridge.agreement import gathered
from neuroshard_pipeline.torchrec_bridge.moving.parts import Optimizers, Part, columns_of, dense_parameters, parts_of


class Whole(NamedTuple):
    """Size and data type of a whole tensor."""

    size: tuple[int, ...]
    dtype: torch.dtype


#: The whole tensors of a model or a checkpoint by name.
Wholes = Mapping[str, Whole]
#: Name of a whole tensor, offsets and sizes of a rectangle.
Box = tuple[str, tuple[int, ...], tuple[int, ...]]


class Blend(NamedTuple):
    """A row-wise state (`tensor`) of a block of columns that the other plan does not have.

    `parts` are the states of the other plan's blocks with columns in common, `shares` the block's columns in each of
    them.
    """

    tensor: torch.Tensor
    parts: list[Part]
    shares: list[float]

    def mix(self) -> None:
        """Write the mean of the parts, weighted by columns."""
        products = [part.tensor * share for part, share in zip(self.parts, self.shares, strict=True)]
        self.tensor.copy_(torch.stack(products).sum(dim=0))


class Described(NamedTuple):
    """What every rank has, without the values: the whole tensors of all ranks, and the rectangles of every rank."""

    wholes: dict[str, Whole]
    boxes: list[list[Box]]


def described(parts: Callable[[], list[Part]]) -> tuple[list[Part], Described]:
    """The result of `parts` on this rank, and a description of those of all ranks, each of which must call this.

    Raises:
        PlanError: `parts` raised on some rank.
    """
    own: list[Part] = []

    def describe() -> list[tuple[Whole, Box]]:
        own.extend(parts())
        return [
            (Whole(part.size, part.tensor.dtype), (part.name, part.offsets, tuple(part.tensor.shape))) for part in own
        ]

    ranks = gathered(None, describe)
    wholes = {name: whole for of in ranks for whole, (name, *_) in of}
    return own, Described(wholes, [[box for _, box in of] for of in ranks])


def wanted(parts: Collection[Part], theirs: Wholes) -> tuple[list[Part], list[Blend]]:
    """The rectangles to be filled, and the row-wise states that are mixed from some of them afterwards.

    If columns change, the state of a new column shard is the mean of the states of its old ones, weighted by columns.
    Row-wise Adagrad adds up the mean of a row's squared gradients, so that for joined shards this is what it would have
    added up for them together. A part of a shard gets the state of the shard. What the tensors of the other plan
    (`theirs`) lack is left out.
    """
    needed = {(part.name, part.offsets): part for part in parts if part.name in theirs}
    blocks, blends = [(name, block) for name in theirs if (block := columns_of(name))], list[Blend]()
    for part in parts:
        own = columns_of(part.name)
        if part.name in theirs or own is None:
            continue
        common = {name: min(end, own[2]) - max(first, own[1]) for name, (of, first, end) in blocks if of == own[0]}
        names = [name for name, columns in common.items() if columns > 0]
        for name in names:
            empty = part._replace(name=name, tensor=torch.zeros_like(part.tensor))
            needed.setdefault((name, part.offsets), empty)
        if names:
            shares = [common[name] / (own[2] - own[1]) for name in names]
            blends.append(Blend(part.tensor, [needed[name, part.offsets] for name in names], shares))
    return list(needed.values()), blends


def prepared(model: Any, optimizers: Optimizers, theirs: Wholes) -> list[Part]:
    """`parts_of`, with those states of the other plan that dense optimizers would only make in their first step."""
    for name, parameter, optimizer in dense_parameters(model, optimizers):
        states = optimizer.state[parameter]
        given = {of.removeprefix(f"{name}/"): whole for of, whole in theirs.items() if of.startswith(f"{name}/")}
        if not states and not any(key.startswith("momentum1") for key in given):
            for key, (size, dtype) in given.items():
                shape, device = ((), None) if key == "step" else (size, parameter.device)
                is_like = size == tuple(parameter.shape)  # the parameter may be a DTensor
                empty = parameter.detach() if is_like else torch.empty(shape, device=device)
                states[key] = torch.zeros_like(empty, dtype=dtype)
    return parts_of(model, optimizers)


def check(ours: Wholes, theirs: Wholes, new: bool, source: str) -> None:
    """Refuse to fill a model with the tensors `ours` from tensors (`theirs`) that are not those of this model.

    `source` says for messages where they come from. If `new`, tensors and rows that they lack keep their initial
    values.

    Raises:
        PlanError: a tensor is missing, has another size, or an optimizer's state has no place; the message names it.
    """
    states, known = _by_parameter(ours), _by_parameter(theirs)
    missing = sorted(states.keys() - known.keys())
    if missing and not new:
        raise PlanError(
            f"{source} lacks {named(missing, 'tensor')}; give new=True if they are to keep their initial values"
        )
    differing = sorted(name for name in ours.keys() & theirs.keys() if ours[name].size != theirs[name].size)
    if new:
        differing = [name for name in differing if ours[name].size[1:] != theirs[name].size[1:]]
    if differing:
        sizes = f"{theirs[differing[0]].size} there and {ours[differing[0]].size} here"
        remedy = "" if new else "; give new=True if new rows are to keep their initial values"
        raise PlanError(f"the size of {named(differing, 'tensor')} is not that in {source}: {sizes}{remedy}")
    for name in states.keys() & known.keys():
        for one, other, place in ((states, known, source), (known, states, "the model")):
            if lost := sorted(one[name] - other[name] - {"step"}):
                raise PlanError(
                    f"{place} has no {', '.join(lost)} of {name!r}; give the optimizers of the dense network and of "
                    "replicated tables, too, and let a table that changes from or to data_parallel have the same kind "
                    "of optimizer in both: SGD, Adagrad or RowWiseAdagrad"
                )


def _by_parameter(wholes: Wholes) -> dict[str, set[str]]:
    """The states of every parameter, without blocks of columns."""
    found: dict[str, set[str]] = {}
    for name in wholes:
        whole, *_ = columns_of(name) or (name,)
        parameter, _, state = whole.partition("/")
        found.setdefault(parameter, set()).update([state] if state else [])
    return found
