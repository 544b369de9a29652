"""Time of NCCL's collectives on a modelled cluster: an explicit formula, no measurement.

Shapes: N samples of one world size, W ranks. In formulas: S bytes, n ranks, H hosts, g = n / H ranks per host. Other
names are fields of `HostParams` and `FabricParams`, without units.

Ranks fill hosts in order. A collective costs a floor plus the transfer of its busiest link. NCCL chooses between
protocols with low latency and the protocol Simple, which takes time to fill its pipeline but reaches the full
bandwidth:

    transfer(V, B, share, fill) = min(V / (share * B), fill + V / B)         V bytes over a link of bandwidth B

    floor       launch + rank * (g - 1) inside a host; across hosts also hop * log2 H (all_reduce, even in a ring),
                hop * (H - 1) (all_gather and reduce_scatter), or hop + peer * (n - g) (alltoall).
                Except in an alltoall, a hop takes hop * (1 + S / (S + 8 KiB)): twice as long for a large message.
    ring        p * S * (n - 1) / n bytes over the links of each GPU, and over the network cards of each host together;
                p = 2 for all_reduce, which passes the ring twice, else 1. Short rings use fewer channels: the bandwidth
                of the links is B * g / (g + 0.5). The pipeline fills in g - 1 steps, and p * (H - 1) between hosts.
    tree        all_reduce only: 2 * S * (H - 1) / H bytes over the cards of a host. Links are used as in a ring, but
                the NVLink switch adds up the numbers (NVLS), so that their bandwidth is multiplied by
                `switch_reduction`. NCCL takes the faster of ring and tree.
    alltoall    rank i sends S / n to each rank: S * (g - 1) / n over its links, S * (n - g) / n over its own card.
                Links and cards work at the same time, so that only the slower of the two counts, with its part of the
                floor. Across hosts there is no protocol of low latency, and each doubling of the hosts multiplies the
                bandwidth by `alltoall_share`.

`size_bytes` is the whole buffer, as in nccl-tests: the input of one rank for all_reduce, alltoall and reduce_scatter,
and the output of one rank for all_gather. A single rank communicates with nobody and costs nothing.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.parameters import Parameters

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

BYTES_PER_US = 1e3  # of a link with 1 GB/s
_MS_PER_US = 1e-3
#: Fewest GPUs of one switch for which NCCL lets the switch add up numbers: four H100 and four B200 still use rings.
_LEAST_SWITCH_RANKS = 8
#: Most cards of an NVLink domain that rings and trees use: 20 racks of 72 GB200 reach 405 GB/s, about 8 x 50 GB/s.
_MOST_CARDS = 8
#: Messages far above this size take twice as long per hop as small ones: all_reduce takes 23 us for 1 KiB and 43 us for
#: 8 KiB on 2 hosts of Alps, and 62 us for 32 bytes and 118 us for 8 KiB on 8 hosts of Polaris.
_EAGER_BYTES = 8192
_SHORT_RING_LOSS = 0.5  # all_gather on 2, 4 and 8 Hopper GPUs reaches 275, 332 and 352 GB/s (XLA's table)


class HostParams(Parameters):
    """The GPUs of one host and the NVLink between them.

    Attributes:
        launch_us: shortest time of any collective, without `rank_us`.
        rank_us: further time for every GPU of the host after the first.
        link_gb_per_s: bandwidth of the links of one GPU, per direction, that large collectives reach.
        switch_reduction: factor of the all_reduce bandwidth if the NVLink switch adds up the numbers (NVLS), on 8 or
            more GPUs.
        fill_us: time to fill the pipeline of the protocol Simple, for every GPU of the host after the first.
        low_latency_share: share of the bandwidth that the protocols with low latency reach.
    """

    launch_us: float = Field(ge=0)
    rank_us: float = Field(ge=0)
    link_gb_per_s: float = Field(gt=0)
    switch_reduction: float = Field(ge=1)
    fill_us: float = Field(ge=0)
    low_latency_share: float = Field(gt=0, le=1)


class FabricParams(Parameters):
    """The network between hosts.

    Attributes:
        hop_us: time of one hop between hosts.
        peer_us: time per message of an alltoall to another host.
        card_gb_per_s: bandwidth per direction that rings and trees reach on the cards of a host, divided by its GPUs.
        alltoall_share: factor of that bandwidth in an alltoall, per doubling of the hosts.
        tree_fill_us: time to fill the pipeline of a tree, per doubling of the hosts.
        ring_fill_us: time to fill the pipeline of a ring, per pass and per host after the first.
        low_latency_share: as in `HostParams`, for rings and trees across hosts.
        trees: whether all_reduce may use trees.
    """

    hop_us: float = Field(ge=0)
    peer_us: float = Field(ge=0)
    card_gb_per_s: float = Field(gt=0)
    alltoall_share: float = Field(gt=0, le=1)
    tree_fill_us: float = Field(ge=0)
    ring_fill_us: float = Field(ge=0)
    low_latency_share: float = Field(gt=0, le=1)
    trees: bool


class NetworkParams(Parameters):
    """A modelled cluster; presets are in conf/base/parameters_lab.yml.

    Attributes:
        gpus_per_host: GPUs that NVLink connects, usually those of one host.
        host: inside a host.
        fabric: between hosts.
    """

    gpus_per_host: int = Field(ge=1, le=1024)
    host: HostParams
    fabric: FabricParams

    def hosts_of(self, ranks: int) -> int:
        """Number of hosts that ranks fill."""
        return -(-ranks // self.gpus_per_host)


def collective_us(
    collective: Collective, size_bytes: ArrayLike, ranks: ArrayLike, hosts: ArrayLike, params: NetworkParams
) -> FloatArray:
    """Time of collectives to which all ranks contribute equally, in microseconds; the arguments broadcast.

    `size_bytes` is S, the whole buffer (see the top of this file); n / H of the n `ranks` are on each of H `hosts`.
    """
    size, n, h = (np.asarray(values, dtype=np.float64) for values in (size_bytes, ranks, hosts))
    if collective == "alltoall":
        us = _even_alltoall_us(size, n, h, params)
    else:
        us = _ring_or_tree_us(collective, size, n, h, params)
    return np.where(n > 1, us, 0.0)


def _even_alltoall_us(size: FloatArray, n: FloatArray, h: FloatArray, params: NetworkParams) -> FloatArray:
    g = n / h
    inside = _inside_us(g - 1, size * (g - 1) / n, params.host)
    across = np.where(h > 1, _across_us(n - g, size * (n - g) / n, h, params.fabric), 0.0)
    return params.host.launch_us + np.maximum(inside, across)


def _inside_us(peers: FloatArray, port_bytes: FloatArray, host: HostParams) -> FloatArray:
    """Exchange of one GPU with `peers` GPUs of its host; launch excluded."""
    busy_us = port_bytes / (host.link_gb_per_s * BYTES_PER_US)
    return host.rank_us * peers + _transfer_us(busy_us, host.low_latency_share, host.fill_us * peers)


def _across_us(peers: FloatArray, port_bytes: FloatArray, hosts: FloatArray, fabric: FabricParams) -> FloatArray:
    """Exchange of one GPU with `peers` GPUs of other hosts over its card; launch excluded."""
    rate = fabric.card_gb_per_s * BYTES_PER_US * fabric.alltoall_share ** np.log2(hosts)
    return fabric.hop_us + fabric.peer_us * peers + port_bytes / rate


def _transfer_us(busy_us: FloatArray, share: FloatArray | float, fill_us: FloatArray | float) -> FloatArray:
    return np.minimum(busy_us / share, fill_us + busy_us)


def _ring_or_tree_us(
    collective: Collective, size: FloatArray, n: FloatArray, h: FloatArray, params: NetworkParams
) -> FloatArray:
    host, fabric = params.host, params.fabric
    g, several, levels = n / h, h > 1, np.log2(h)
    is_all_reduce = collective == "all_reduce"
    passes = 2.0 if is_all_reduce else 1.0
    ring_bytes = passes * size * (n - 1) / n
    link_us = np.where(g > 1, ring_bytes / (host.link_gb_per_s * BYTES_PER_US) * (1 + _SHORT_RING_LOSS / g), 0.0)
    cards = np.minimum(g, _MOST_CARDS) * fabric.card_gb_per_s * BYTES_PER_US
    share = np.where(several, fabric.low_latency_share, host.low_latency_share)
    host_fill = host.fill_us * (g - 1)
    ring_busy = np.maximum(link_us, np.where(several, ring_bytes / cards, 0.0))
    us = _transfer_us(ring_busy, share, host_fill + fabric.ring_fill_us * passes * (h - 1))
    if is_all_reduce:
        reduction = np.where(g >= _LEAST_SWITCH_RANKS, host.switch_reduction, 1.0)
        tree_busy = np.maximum(link_us / reduction, 2 * size * (h - 1) / h / cards)
        tree_us = _transfer_us(tree_busy, share, host_fill + fabric.tree_fill_us * levels)
        us = np.where(several & (not fabric.trees), us, np.minimum(us, tree_us))
    hop_us = fabric.hop_us * (1 + size / (size + _EAGER_BYTES))
    hops = hop_us * (levels if is_all_reduce else h - 1)
    return host.launch_us + host.rank_us * (g - 1) + hops + us


def rank_costs_ms(message_bytes: FloatArray, start_ms: FloatArray, params: NetworkParams) -> FloatArray:
    """Cost of every rank of an uneven alltoall from its own start, (N, W), in ms.

        port[i, j] = max(bytes that i sends on the level, bytes that j receives on the level)
        done[i, j] = max(start[i], start[j]) + time of port[i, j] on the level of the message
        cost[r]    = launch + max(done[r, j], done[j, r] over every j that r exchanges bytes with) - start[r]

    The level of a message is NVLink or the network. Links are full duplex. The messages on a link share its bandwidth,
    so that any of them may be the last. A message starts when both of its ranks have entered the collective. Equal
    volumes and starts give `collective_us`.

    Args:
        message_bytes: bytes that rank i sends to rank j, (N, W, W); the diagonal is ignored.
        start_ms: time at which each rank enters the collective, (N, W).
        params: the cluster.
    """
    world_size = start_ms.shape[1]
    if world_size < 2:
        return np.zeros(start_ms.shape)
    host, hosts = np.arange(world_size) // params.gpus_per_host, np.array(params.hosts_of(world_size))
    inside = host[:, None] == host[None, :]
    both_there = np.maximum(start_ms[:, :, None], start_ms[:, None, :])  # (N, W, W)
    done = np.full(message_bytes.shape, -np.inf)
    for level, is_inside in ((inside & ~np.eye(world_size, dtype=bool), True), (~inside, False)):
        used = level & (message_bytes > 0)
        peers, port_bytes = _larger_side(used.astype(np.float64)), _larger_side(np.where(used, message_bytes, 0.0))
        if is_inside:
            us = _inside_us(peers, port_bytes, params.host)
        else:
            us = _across_us(peers, port_bytes, hosts, params.fabric)
        done = np.where(used, both_there + us * _MS_PER_US, done)
    last_ms = np.maximum(done.max(axis=2), done.max(axis=1))
    return params.host.launch_us * _MS_PER_US + np.maximum(last_ms, start_ms) - start_ms


def _larger_side(values: FloatArray) -> FloatArray:
    """For every pair the larger of what the first sends to all and what the second receives from all, (N, W, W)."""
    return np.maximum(values.sum(axis=2)[:, :, None], values.sum(axis=1)[:, None, :])
