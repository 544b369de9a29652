"""Times the recorded collectives of a step alone: every rank repeats them with buffers of the same sizes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any


def replayed_ms(calls: Sequence[Any], groups: Any) -> float:
    """Time of the collectives of a step alone, one after the other, in ms."""
    import torch
    import torch.distributed as dist

    sent: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sent, [(call.ranks, call.sent_bytes) for call in calls])
    numbered = [_numbered(of_rank) for of_rank in sent]
    group_of = {tuple(dist.get_process_group_ranks(group)): group for group in vars(groups).values()}
    ready = []
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    for call in calls:
        at, key = call.ranks.index(call.rank), (call.ranks, seen[call.ranks])
        seen[call.ranks] += 1
        group = group_of[call.ranks]
        if call.name == "all_reduce":
            members = len(call.ranks)
            size = sum(call.sent_bytes) * members / (2 * (members - 1)) if members > 1 else 0.0
            ready.append((dist.all_reduce, (torch.zeros(round(size / 4)), dist.ReduceOp.SUM, group)))
            continue
        if call.name != "all_to_all_single":
            raise NotImplementedError(f"{call.name} is no collective of sequence modules")
        out = [round(of) for of in call.sent_bytes]
        back = [round(numbered[other][key][at]) for other in call.ranks]
        buffers = (torch.zeros(sum(back), dtype=torch.uint8), torch.zeros(sum(out), dtype=torch.uint8))
        ready.append((dist.all_to_all_single, (*buffers, back, out, group)))
    dist.barrier()
    start = time.perf_counter()
    for collective, arguments in ready:
        collective(*arguments)
    return 1000.0 * (time.perf_counter() - start)


def _numbered(calls: Sequence[tuple[tuple[int, ...], Any]]) -> dict[Any, Any]:
    """Sent bytes by group and by the number of the call among those of the group."""
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    found = {}
    for ranks, sent in calls:
        found[ranks, seen[ranks]] = sent
        seen[ranks] += 1
    return found
