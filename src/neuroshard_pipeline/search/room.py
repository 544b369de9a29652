"""Refuses tasks whose search or plan would need more memory than this machine has left, or would take too long.

If a search took more memory than is left, the kernel would kill the process.
"""

from neuroshard_pipeline.errors import TooLargeError
from neuroshard_pipeline.host import available_memory_bytes
from neuroshard_pipeline.tables.task import ShardingTask

#: Upper bounds of the memory of a plan and its predicted cost, whichever sharder made it: 10 tables on 1,000,000 ranks
#: took 1,144 bytes per rank.
PLAN_BYTES_PER_RANK = 2_000
PLAN_BYTES_PER_TABLE = 20_000

#: Less memory than this is granted without reading how much is left, which takes half a millisecond.
_LITTLE_BYTES = 2**24


def require_room(
    task: ShardingTask, purpose: str, bytes_per_rank: float = 0.0, other_bytes: float = 0.0, most_ranks: int = 2**63
) -> None:
    """Refuse a task whose `bytes_per_rank * world_size + other_bytes` exceed the memory left, or with too many ranks.

    Args:
        task: the task; only its id and its numbers of tables and ranks are read.
        purpose: what needs the memory, for the message.
        bytes_per_rank: memory for every rank.
        other_bytes: memory that does not depend on the number of ranks.
        most_ranks: largest number of ranks, whatever the memory, because more of them would take too long.

    Raises:
        TooLargeError: the message names the largest number of ranks that fits or, if none does, another remedy.
    """
    needed = bytes_per_rank * task.world_size + other_bytes
    if needed <= _LITTLE_BYTES and task.world_size <= most_ranks:
        return
    available = available_memory_bytes()
    if needed <= available and task.world_size <= most_ranks:
        return
    fits = most_ranks if not bytes_per_rank else min(most_ranks, int((available - other_bytes) // bytes_per_rank))
    reason = f"needs up to {needed / 2**30:.3g} GiB of memory, and this machine has {available / 2**30:.3g} GiB left"
    raise TooLargeError(
        f"{task.task_id}: {purpose} for {len(task.tables)} tables on {task.world_size} ranks "
        f"{'takes too long' if needed <= available else reason}; "
        + (f"use at most {fits} ranks" if fits >= 1 else "use fewer tables, or a machine with more memory")
        + (", or a sharder that does not search, such as size_lookup_greedy" if most_ranks < 2**63 else "")
    )
