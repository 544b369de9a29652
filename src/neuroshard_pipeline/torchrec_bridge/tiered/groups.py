"""Process groups of the ranks of a host, and of the ranks that hold the same rows on different hosts."""

from dataclasses import dataclass

import torch.distributed as dist

from neuroshard_pipeline.errors import PlanError


@dataclass(frozen=True)
class RankGroups:
    """The process groups of this rank: all ranks, those of its host in order, and its peers.

    Its peers are the ranks, one per host, that have this rank's position on their hosts.
    """

    world: dist.ProcessGroup
    host: dist.ProcessGroup
    peers: dist.ProcessGroup

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return self.peers.size()


def rank_groups(ranks_per_host: int, process_group: dist.ProcessGroup | None = None) -> RankGroups:
    """Make the process groups of hosts of `ranks_per_host` consecutive ranks. Every rank of the job must call this.

    The job consists of the ranks of `process_group`, by default of all ranks.

    Raises:
        PlanError: there is no process group, or its ranks cannot be divided into hosts of this size.
    """
    world = process_group or dist.group.WORLD
    if world is None:
        raise PlanError("no process group: call torch.distributed.init_process_group first")
    if ranks_per_host < 1 or world.size() % ranks_per_host:
        raise PlanError(f"ranks_per_host {ranks_per_host} must divide the {world.size()} ranks of the process group")
    ranks = dist.get_process_group_ranks(world)
    hosts = [ranks[start : start + ranks_per_host] for start in range(0, len(ranks), ranks_per_host)]
    if len(hosts) == 1:
        alone, _ = dist.new_subgroups_by_enumeration([[rank] for rank in ranks])
        return RankGroups(world, world, alone)
    host, _ = dist.new_subgroups_by_enumeration(hosts)
    peers, _ = dist.new_subgroups_by_enumeration([list(place) for place in zip(*hosts, strict=True)])
    return RankGroups(world, host, peers)
