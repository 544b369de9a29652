"""The memory that this process may still use on its host."""

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

#: Where Linux lists the cgroups of this process, and where it describes all cgroups.
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
#: For cgroups of version 2 and of version 1: the file of the memory limit, the file of the present use, and the entry
#: of `memory.stat` with the page cache. The page cache counts as use, but it is freed on demand.
_FILES = (("memory.max", "memory.current", "file"), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"))


def available_memory_bytes() -> int:
    """The least of what the machine, the cgroups of this process and its address-space limit (`ulimit -v`) leave."""
    return max(0, min(psutil.virtual_memory().available, *_left_in_address_space(), *left_in_cgroups()))


def left_in_cgroups(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> Iterator[int]:
    """Bytes that each cgroup of this process leaves, for every cgroup with a memory limit.

    Args:
        own: file with one line `number:controllers:path` per cgroup.
        root: folder of all cgroups; those of version 1 are in its folder `memory`.
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
