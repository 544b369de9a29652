"""Collectives that do not hang when a rank fails, because a failed rank sends its error in place of a result.

If the first rank raises inside TorchRec's `invoke_on_rank_and_broadcast_result`, every other rank waits for the result
until the timeout of the process group. The functions here send the error instead, and raise it on every rank.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from neuroshard_pipeline.errors import NeuroShardError, PlanError

T = TypeVar("T")


def process_group(pg: dist.ProcessGroup | None, world_size: int) -> dist.ProcessGroup:
    """The process group `pg`, or the default process group if `pg` is None. The group must have `world_size` ranks.

    Raises:
        PlanError: there is no process group, or it has another number of ranks.
    """
    if pg is None and dist.is_available() and dist.is_initialized():
        pg = dist.group.WORLD
    if pg is None:
        raise PlanError("no process group: call torch.distributed.init_process_group first, or call plan() on one rank")
    if pg.size() != world_size:
        raise PlanError(
            f"the plan is for {world_size} ranks (those of the topology times the replica groups), but the process "
            f"group has {pg.size()}; use the same number"
        )
    return pg


def agree(pg: dist.ProcessGroup, describe: Callable[[], str]) -> None:
    """Raise on all ranks of the group unless `describe` returns the same text on every rank. Every rank must call this.

    Raises:
        PlanError: `describe` raised on some rank, or its results differ between ranks.
    """
    answers = gathered(pg, describe)
    for rank, text in enumerate(answers):
        if text != answers[0]:
            raise PlanError(
                f"rank {rank} of {pg.size()} has other tables, pooling factors or module names than rank 0; build "
                "the same model and give the same constraints everywhere"
            )


def gathered(pg: dist.ProcessGroup | None, call: Callable[[], T]) -> list[T]:
    """The results of `call` on all ranks of the group (None for the default group), each of which must call this.

    Raises:
        NeuroShardError: `call` raised on some rank; the error has the type of that of the first such rank.
    """
    answers: list[Any] = [None] * dist.get_world_size(pg)
    dist.all_gather_object(answers, _attempt(call), group=pg)
    for rank, (_, error) in enumerate(answers):
        if error is not None:
            raise type(error)(f"rank {rank} of {len(answers)}: {error}") from error
    return [result for result, _ in answers]


def _attempt(call: Callable[[], Any]) -> list[Any]:
    """`[result of call, None]`, or `[None, error]` if `call` raised; the error can be sent to other ranks."""
    try:
        return [call(), None]
    except NeuroShardError as error:
        return [None, error]
    except Exception as error:
        sent = PlanError(f"{type(error).__name__}: {error}")
        sent.__cause__ = error
        return [None, sent]
