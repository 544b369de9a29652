"""The memory of this host that is left, and the share of its cores' time that other programs use."""

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import final

import psutil

#: Where Linux lists the cgroups of this process, and where it describes all cgroups.
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
#: For cgroups of version 2 and of version 1: the file of the memory limit, the file of the present use, and the entry
#: of `memory.stat` with the page cache. The page cache counts as use, but it is freed on demand.
_FILES = (("memory.max", "memory.current", "file"), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"))

#: A machine is busy if other programs use more than this share of its cores. On a quiet machine with two cores, other
#: programs used 0.2 % of them.
BUSY_SHARE = 0.1

#: Samples of collectives in the environment base have up to this many ranks.
MOST_RANKS = 8


def available_memory_bytes() -> int:
    """The least of what the machine, the cgroups of this process and its address-space limit (`ulimit -v`) leave."""
    return max(0, min(psutil.virtual_memory().available, *_left_in_address_space(), *left_in_cgroups()))


def left_in_cgroups(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> Iterator[int]:
    """Bytes that each cgroup of this process leaves, for every cgroup with a memory limit.

    The file `own` has one line `number:controllers:path` per cgroup; those of version 1 are in the folder `memory` of
    `root`.
    """
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        version_1 = "memory" in controllers.split(",")
        if controllers and not version_1:
            continue
        top = root / "memory" if version_1 else root
        folder = top / path.lstrip("/")
        for cgroup in (folder, *folder.parents):
            yield from _left(cgroup, *_FILES[version_1])
            if cgroup == top:
                break


def _left(cgroup: Path, limit: str, use: str, cache: str) -> Iterator[int]:
    try:
        allowed, used = (cgroup / limit).read_text().strip(), int((cgroup / use).read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except OSError:
        return  # the root cgroup has no limit, and a container may hide the cgroups above its own
    if allowed != "max":
        yield int(allowed) - used + int(stat.get(cache, 0))


def _left_in_address_space() -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit - psutil.Process().memory_info().vms


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may use, ascending."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def ranks_side_by_side() -> int:
    """The number of ranks that run on cores of their own: the largest power of two among the cores, from 2 to 8."""
    return int(min(MOST_RANKS, max(2, 2 ** int(math.log2(len(usable_cores()))))))


@final
class OtherPrograms:
    """Measures the share of the cores' time that goes to other programs, from the creation of the object on.

    The cores are those that this process may use. Other programs are all processes except this one and those that it
    has started; on a virtual machine, time that other machines take from the cores counts, too.
    """

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._process = psutil.Process()
        self._used_s, self._total_s = self._clock()

    def share(self) -> float:
        """Share between 0 and 1 since the last call, or since the creation; NaN if too little time has passed."""
        used_s, total_s = self._clock()
        used, total = used_s - self._used_s, total_s - self._total_s
        self._used_s, self._total_s = used_s, total_s
        return min(max(used / total, 0.0), 1.0) if total > 0 else float("nan")

    def _clock(self) -> tuple[float, float]:
        """Seconds that other programs have used the cores, and seconds of all cores, since the machine started."""
        times = psutil.cpu_times(percpu=True)
        cores = [times[core] for core in self._cores if core < len(times)]
        # `guest` and `guest_nice` are already part of `user` and `nice`.
        busy_s = sum(each.user + each.nice + each.system + each.irq + each.softirq + each.steal for each in cores)
        total_s = busy_s + sum(each.idle + each.iowait for each in cores)
        return busy_s - self._own_s(), total_s

    def _own_s(self) -> float:
        """Seconds of processor time of this process and of all processes that it has started, running or ended."""
        seconds = 0.0
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has ended since it was listed
                continue
            seconds += times.user + times.system + times.children_user + times.children_system
        return seconds
