"""A proposer of TorchRec's planner for GPU and host memory: a dynamic program over both, as TorchEasyRec has one.

The idea is that of TorchEasyRec (Alibaba, `tzrec/utils/plan_util.py`, 2026). TorchRec's own
`DynamicProgrammingProposer` counts GPU memory alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torchrec.distributed.planner.types import Enumerator, Proposer, ShardingOption, Topology

#: Steps into which the GPU memory and the host memory of all ranks together are divided.
GPU_BINS, HOST_BINS = 128, 16


class TwoMemoriesProposer(Proposer):
    """Proposes, for every sum of GPU memory, the options with the least sum of TorchRec's costs.

    One option is chosen per table. A state holds the bins of GPU and of host memory that the tables so far need, and
    keeps the cheapest choice that leads to it.
    """

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:  # noqa: ARG002
        """Sort the options of every table by GPU memory. The first proposal takes the smallest ones."""
        tables = defaultdict(list)
        for option in sorted(search_space, key=lambda option: option.total_storage.hbm):
            tables[option.fqn].append(option)
        self._tables = list(tables.values())
        self._proposals = [[options[0] for options in self._tables]]
        self._knows_memory = False

    def propose(self) -> list[ShardingOption] | None:
        """The next proposal, or None after the last one."""
        return self._proposals[0] if self._proposals else None

    def feedback(
        self,
        partitionable: bool,  # noqa: ARG002
        plan: list[ShardingOption] | None = None,  # noqa: ARG002
        perf_rating: float | None = None,  # noqa: ARG002
        storage_constraint: Topology | None = None,
    ) -> None:
        """Drop the last proposal. The first feedback tells the memory, with which all others are made."""
        self._proposals = self._proposals[1:]
        if not self._knows_memory and storage_constraint is not None:
            self._knows_memory = True
            self._proposals = _proposals(self._tables, storage_constraint)


def _proposals(tables: list[list[ShardingOption]], topology: Topology) -> list[list[ShardingOption]]:
    """The cheapest choice for every bin of GPU memory, largest bin first."""
    gpu = sum(device.storage.hbm for device in topology.devices) / GPU_BINS
    host = max(sum(device.storage.ddr for device in topology.devices), 1) / HOST_BINS
    states: dict[tuple[int, int], tuple[float, float, float, Any]] = {(0, 0): (0.0, 0.0, 0.0, None)}
    for options in tables:
        after: dict[tuple[int, int], tuple[float, float, float, Any]] = {}
        for cost, gpu_bins, host_bins, chosen in states.values():
            for option in options:
                total = cost + option.total_perf
                in_gpu, in_host = gpu_bins + option.total_storage.hbm / gpu, host_bins + option.total_storage.ddr / host
                key = int(in_gpu), int(in_host)
                if in_gpu <= GPU_BINS and in_host <= HOST_BINS and (key not in after or total < after[key][0]):
                    after[key] = (total, in_gpu, in_host, (option, chosen))
        states = after
    cheapest: dict[int, tuple[float, Any]] = {}
    for (gpu_bin, _), (cost, _, _, chosen) in states.items():
        if gpu_bin not in cheapest or cost < cheapest[gpu_bin][0]:
            cheapest[gpu_bin] = (cost, chosen)
    return [_unlinked(cheapest[gpu_bin][1]) for gpu_bin in sorted(cheapest, reverse=True)]


def _unlinked(chosen: Any) -> list[ShardingOption]:
    options = []
    while chosen is not None:
        option, chosen = chosen
        options.append(option)
    return options[::-1]
