"""All-to-alls of the lab (`lab.network.rank_costs_ms`) in compiled code; a rank's messages have one size.

`lab_plans.Machine` has the numbers `m` of a cluster. The time of a message is the maximum of a term of its sender and a
term of its receiver, so that it does not matter which of the two holds the shards.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_NEVER = -1e30


@njit(cache=True)
def _transfer(num_bytes, peers, is_inside, m):
    if is_inside:
        busy = num_bytes / m.link
        return m.rank * peers + min(busy / m.host_share, m.fill * peers + busy)
    return m.hop + m.peer * peers + num_bytes / m.alltoall_card


@njit(cache=True)
def _pair(clock, last, i, j, us):
    """A message between i and j ends `us` after both have entered the collective."""
    done = max(clock[i], clock[j]) + us
    last[i], last[j] = max(last[i], done), max(last[j], done)


@njit(cache=True)
def _exchange_inside(clock, last, numbers, m):
    """Messages between the ranks of a host."""
    for i in range(m.world):
        if numbers[i] <= 0:
            continue
        first = i // m.local * m.local
        of_host = numbers[first : first + m.local].sum()
        for j in range(first, first + m.local):
            if j != i:
                size = max(numbers[i] * (m.local - 1), of_host - numbers[j])
                _pair(clock, last, i, j, _transfer(size, m.local - 1, True, m))


@njit(cache=True)
def _exchange_across(clock, last, numbers, m):
    """Messages between hosts; maxima over the ranks of a host suffice."""
    hosts, peers, total = m.world // m.local, m.world - m.local, numbers.sum()
    latest, of_partner = np.full(hosts, _NEVER), np.zeros(hosts)  # of all ranks of a host
    start, largest, end = np.full((3, hosts), _NEVER)  # of the ranks of a host that hold shards
    for rank in range(m.world):
        host = rank // m.local
        latest[host] = max(latest[host], clock[rank])
        if numbers[rank] > 0:
            us = _transfer(numbers[rank] * peers, peers, False, m)
            start[host], largest[host] = max(start[host], clock[rank]), max(largest[host], us)
            end[host] = max(end[host], clock[rank] + us)
    for host in range(hosts):
        of_host = numbers[host * m.local : (host + 1) * m.local].sum()
        of_partner[host] = _transfer(total - of_host, peers, False, m)
    for rank in range(m.world):
        own, of_own = numbers[rank] > 0, _transfer(numbers[rank] * peers, peers, False, m)
        host = rank // m.local
        for other in range(hosts):
            if other == host:
                continue
            if own:
                us = max(of_own, of_partner[other])
                last[rank] = max(last[rank], max(clock[rank], latest[other]) + us)
            if largest[other] > 0:
                us = of_partner[host]
                done = max(max(clock[rank], start[other]) + us, clock[rank] + largest[other])
                last[rank] = max(last[rank], done, end[other])


@njit(cache=True)
def _exchange_at_places(clock, last, numbers, m):
    """Messages between the ranks at the same position on their hosts; all ranks of a host have the same `numbers`."""
    hosts, total = m.world // m.local, numbers[:: m.local].sum()
    for i in range(m.world):
        if numbers[i] <= 0:
            continue
        for j in range(i % m.local, m.world, m.local):
            if j != i:
                size = max(numbers[i] * (hosts - 1), total - numbers[j])
                _pair(clock, last, i, j, _transfer(size, hosts - 1, False, m))


@njit(cache=True)
def exchange(clock, numbers, one_place, m):
    """Advance the ranks' `clock` (us) by the costs of an all-to-all, as `lab.network.rank_costs_ms` computes them.

    Rank i sends `numbers[i]` bytes to each other rank, or receives them from each; both directions take the same time.
    With `one_place`, only ranks at the same position on their hosts exchange data.
    """
    last = np.full(m.world, _NEVER)
    if one_place:
        _exchange_at_places(clock, last, numbers, m)
    else:
        _exchange_inside(clock, last, numbers, m)
        if m.world > m.local:
            _exchange_across(clock, last, numbers, m)
    clock[:] = m.start + np.maximum(last, clock)
