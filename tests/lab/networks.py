"""A cluster with round numbers, and the alltoall of the modelled network message by message."""

from __future__ import annotations

import math
from collections.abc import Sequence

from neuroshard_pipeline.lab.network import FabricParams, HostParams, NetworkParams

# A link inside a host moves 1 GB/s, which is 1e6 bytes per ms, and a card between hosts a tenth of that. An alltoall of
# two hosts reaches half of the bandwidth of a card.
SIMPLE = NetworkParams(
    gpus_per_host=2,
    host=HostParams(launch_us=100, rank_us=20, link_gb_per_s=1, switch_reduction=1.5, fill_us=8, low_latency_share=0.5),
    fabric=FabricParams(
        hop_us=50,
        peer_us=10,
        card_gb_per_s=0.1,
        alltoall_share=0.5,
        tree_fill_us=40,
        ring_fill_us=30,
        low_latency_share=0.25,
        trees=True,
    ),
)


def alltoall_oracle_ms(
    message_bytes: Sequence[Sequence[float]], start_ms: Sequence[float], params: NetworkParams
) -> list[float]:
    """Cost of every rank of an uneven alltoall, computed message by message from the definition at `rank_costs_ms`."""
    ranks = range(len(start_ms))
    if len(ranks) == 1:
        return [0.0]
    host, fabric = params.host, params.fabric
    hosts = -(-len(ranks) // params.gpus_per_host)
    messages = {(i, j): message_bytes[i][j] for i in ranks for j in ranks if i != j and message_bytes[i][j] > 0}

    def is_inside(pair):
        return pair[0] // params.gpus_per_host == pair[1] // params.gpus_per_host

    def us(pair):
        sent = [size for other, size in messages.items() if other[0] == pair[0] and is_inside(other) == is_inside(pair)]
        got = [size for other, size in messages.items() if other[1] == pair[1] and is_inside(other) == is_inside(pair)]
        peers, volume = max(len(sent), len(got)), max(sum(sent), sum(got))
        if is_inside(pair):
            busy = volume / host.link_gb_per_s / 1e3
            return host.rank_us * peers + min(busy / host.low_latency_share, host.fill_us * peers + busy)
        share = fabric.alltoall_share ** math.log2(hosts)
        return fabric.hop_us + fabric.peer_us * peers + volume / (fabric.card_gb_per_s * share) / 1e3

    done = list(start_ms)
    for i, j in messages:
        end = max(start_ms[i], start_ms[j]) + us((i, j)) / 1e3
        done[i], done[j] = max(done[i], end), max(done[j], end)
    return [host.launch_us / 1e3 + done[rank] - start_ms[rank] for rank in ranks]
