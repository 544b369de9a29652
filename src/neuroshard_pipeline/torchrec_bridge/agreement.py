"""Collectives that cannot hang on a rank that has failed: failures are exchanged like results, then raised everywhere.

TorchRec's `invoke_on_rank_and_broadcast_result` broadcasts what the first rank computed; where that rank raises
instead, every other rank waits for it until the process group's timeout. Here the error is what is broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from neuroshard_pipeline.errors import NeuroShardError, PlanError

T = TypeVar("T")


def process_group(pg: dist.ProcessGroup | None, world_size: int) -> dist.ProcessGroup:
    """`pg` or else the default process group, if it has as many ranks as the plan is to have.

    Raises:
        PlanError: there is no process group, or it has another number of ranks.
    """
    if pg is None:
        if not dist.is_available() or not dist.is_initialized():
            raise PlanError("no process group: call torch.distributed.init_process_group first, or plan() on one rank")
        pg = dist.group.WORLD
    if pg is None or pg.size() != world_size:
        found = 0 if pg is None else pg.size()
        raise PlanError(
            f"the topology has {world_size} ranks, but the process group has {found}; give both the same number"
        )
    return pg


def agree(pg: dist.ProcessGroup, look: Callable[[], str]) -> None:
    """Raise on all ranks unless `look` succeeds on all and returns the same text.

    Args:
        pg: the process group; every rank of it must call this.
        look: reads something local, such as the tables of this rank's model.

    Raises:
        PlanError: `look` raised on some rank, or the ranks see different things.
    """
    text, error = _attempt(look)
    seen: list[Any] = [None] * pg.size()
    dist.all_gather_object(seen, (text, _message(error)), group=pg)
    failed = {rank: message for rank, (_, message) in enumerate(seen) if message is not None}
    if failed:
        rank, message = next(iter(failed.items()))
        raise PlanError(f"rank {rank} of {pg.size()}: {message}") from error
    common, _ = Counter(text for text, _ in seen).most_common(1)[0]
    for rank, (other, _) in enumerate(seen):
        if other != common:
            raise PlanError(
                f"rank {rank} of {pg.size()} has other tables in its model than the rest; build the same model "
                "everywhere"
            )


def computed_on_first_rank(pg: dist.ProcessGroup, compute: Callable[[], T]) -> T:
    """What `compute` returns on the group's first rank, on every rank; what it raises there is raised everywhere.

    Raises:
        NeuroShardError: as raised by `compute`, whose message every rank gets.
    """
    outcome: list[Any] = [None, None]
    error: BaseException | None = None
    if pg.rank() == 0:
        result, error = _attempt(compute)
        outcome = [result, None if error is None else (_portable(error), _message(error))]
    dist.broadcast_object_list(outcome, group=pg, group_src=0)
    if outcome[1] is not None:
        kind, message = outcome[1]
        raise error or kind(message)
    return outcome[0]


def _attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error


def _message(error: Exception | None) -> str | None:
    if error is None or isinstance(error, NeuroShardError):
        return None if error is None else str(error)
    return f"{type(error).__name__}: {error}"


def _portable(error: Exception) -> type[NeuroShardError]:
    """The class to raise on the other ranks: the error's own, or `PlanError` where it is not one of ours."""
    return type(error) if isinstance(error, NeuroShardError) else PlanError
