"""Data sheets of GPU clusters, where fits of modelled clusters start, and the choice of a cluster for a measurement."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.params import lab_values
from neuroshard_pipeline.parameters import Parameters

_GBIT_PER_GBYTE = 8
#: Rates that publications state: from one GPU to a GPU of another host (`sendrecv` of nccl-tests); of all network cards
#: of a host; of several equal cards; of one card, which is taken as the card of one GPU.
_PAIR_RATE = re.compile(r"sendrecv\s*~?\s*(\d+(?:\.\d+)?)\s*GB/s")
_HOST_RATE = re.compile(r"(\d+)\s*G(?:b|bit|bps)?(?:/s)?\s*(?:/|per )\s*(?:host|node)")
_CARDS_RATE = re.compile(r"(\d+)\s*[xX]\s*(?:(\d+)\s*G(?!B)|(XDR|NDR|HDR|EDR))")
_CARD_RATE = re.compile(r"\b(\d{2,3})\s*G(?:b|bit|bps|\b)|\b(XDR|NDR|HDR|EDR)")
_GBIT = {"XDR": 800.0, "NDR": 400.0, "HDR": 200.0, "EDR": 100.0}


class GpuSheet(Parameters):
    """GPUs of one kind and the links between them.

    Attributes:
        names: regular expression of GPU names; case does not matter.
        link_gb_per_s: bandwidth of all links of one GPU, per direction.
        domain: number of GPUs that the links connect if they reach beyond one host; null if they do not.
        switch_reduction: whether the switch between the links can add up the numbers of an all_reduce (NVLS).
    """

    names: str
    link_gb_per_s: float = Field(gt=0)
    domain: int | None = Field(ge=1)
    switch_reduction: bool


class ClusterSheet(Parameters):
    """Hosts with GPUs of one kind and the network between them.

    Attributes:
        gpu: name of the GPU sheet.
        gpus_per_host: GPUs that NVLink or xGMI connects, usually those of one host.
        interconnect: regular expression that finds the network in a description; case does not matter.
        kind: kind of network, whose typical numbers a fit starts from. `rdma`: InfiniBand, RoCE, Slingshot. `cloud`:
            networks of cloud providers with their own transport (EFA, TCPXO).
        card_gb_per_s: bandwidth of all network cards of a host divided by its number of GPUs, per direction.
        trees: whether all_reduce may use trees.
    """

    gpu: str
    gpus_per_host: int = Field(ge=1)
    interconnect: str
    kind: Literal["rdma", "cloud"]
    card_gb_per_s: float = Field(gt=0)
    trees: bool


class HostNumbers(Parameters):
    """One value for every number of `HostParams` that is fitted, such as its start value or its spread.

    `link_share` stands for `link_gb_per_s`, as a share of the bandwidth on the data sheet.
    """

    launch_us: float = Field(gt=0)
    rank_us: float = Field(gt=0)
    link_share: float = Field(gt=0)
    switch_reduction: float = Field(gt=0)
    fill_us: float = Field(gt=0)
    low_latency_share: float = Field(gt=0)


class FabricNumbers(Parameters):
    """One value for every number of `FabricParams` that is fitted, such as its start value or its spread.

    `card_share` stands for `card_gb_per_s`, as a share of the bandwidth on the data sheet.
    """

    hop_us: float = Field(gt=0)
    peer_us: float = Field(gt=0)
    card_share: float = Field(gt=0)
    alltoall_share: float = Field(gt=0)
    tree_fill_us: float = Field(gt=0)
    ring_fill_us: float = Field(gt=0)
    low_latency_share: float = Field(gt=0)


class NetworkFitParams(Parameters):
    """Where fits start and how far they may go.

    Attributes:
        host: typical numbers of hosts.
        rdma: typical numbers of networks of the kind `rdma`.
        cloud: typical numbers of networks of the kind `cloud`.
        host_spread: standard deviation, over all clusters, of the logarithm of each number in `host`.
        fabric_spread: likewise for the numbers in `rdma` and `cloud`.
        one_process_us: time per GPU of a process that launches a collective on several GPUs, one after the other.
    """

    host: HostNumbers
    rdma: FabricNumbers
    cloud: FabricNumbers
    host_spread: HostNumbers
    fabric_spread: FabricNumbers
    one_process_us: float = Field(ge=0)


class NetworkSheets(Parameters):
    """Data sheets, and where fits start: parameters below `lab` that a fit needs besides measurements.

    Attributes:
        gpus: GPU sheets, the most specific names first.
        clusters: cluster sheets; the first one of a GPU is its default.
        fit: where fits start.
    """

    gpus: dict[str, GpuSheet]
    clusters: dict[str, ClusterSheet]
    fit: NetworkFitParams


@dataclass(frozen=True)
class Chosen:
    """A modelled cluster for a measurement.

    Attributes:
        name: name of the cluster sheet.
        card_gb_per_s: network bandwidth per GPU: the one that the measurement states, else the one of the sheet.
        assumed: the network that was assumed because no sheet of this GPU matches; empty if one does.
    """

    name: str
    card_gb_per_s: float
    assumed: str


def choose_cluster(
    gpu: str, interconnect: str, gpus_per_host: int, gpus: Mapping[str, GpuSheet], clusters: Mapping[str, ClusterSheet]
) -> Chosen | None:
    """The cluster with this GPU and network; the first one with this GPU if the network is unknown.

    Args:
        gpu: name of the GPU.
        interconnect: description of the links and the network.
        gpus_per_host: GPUs on each host.
        gpus: GPU sheets, the most specific names first.
        clusters: cluster sheets; the first one of a GPU is its default.

    Returns:
        None if no cluster sheet has this GPU.
    """
    sheet = next((name for name, sheet in gpus.items() if re.search(sheet.names, gpu, re.IGNORECASE)), None)
    fitting = {name: cluster for name, cluster in clusters.items() if cluster.gpu == sheet}
    if not fitting:
        return None
    named = [name for name, c in fitting.items() if re.search(c.interconnect, interconnect, re.IGNORECASE)]
    name = named[0] if named else next(iter(fitting))
    stated = stated_card_gb_per_s(interconnect, gpus_per_host)
    assumed = "" if named else f"network of {name}"
    return Chosen(name, stated or clusters[name].card_gb_per_s, assumed)


def stated_card_gb_per_s(interconnect: str, gpus_per_host: int) -> float | None:
    """GB/s per GPU that a description states, such as `8x400Gb`, `3200Gb/s/host` or `NDR`; None if it states none."""
    if found := _PAIR_RATE.search(interconnect):
        return float(found[1])
    if found := _HOST_RATE.search(interconnect):
        return float(found[1]) / _GBIT_PER_GBYTE / gpus_per_host
    if found := _CARDS_RATE.search(interconnect):
        return float(found[1]) * _gbit(found[2], found[3]) / _GBIT_PER_GBYTE / gpus_per_host
    if found := _CARD_RATE.search(interconnect):
        return _gbit(found[1], found[2]) / _GBIT_PER_GBYTE
    return None


def _gbit(number: str | None, name: str | None) -> float:
    return float(number) if number else _GBIT[str(name)]


def network_sheets() -> NetworkSheets:
    """Data sheets of GPUs and clusters, and where fits start."""
    values = lab_values()
    return NetworkSheets(gpus=values["gpus"], clusters=values["clusters"], fit=values["network_fit"])


def preset_yaml(name: str, params: NetworkParams, comment: str) -> str:
    """A modelled cluster as lines to paste below `lab.networks`; numbers have three significant digits."""
    lines = [f"    {name}: # {comment}", f"      gpus_per_host: {params.gpus_per_host}"]
    for part, values in (("host", params.host), ("fabric", params.fabric)):
        shown = ", ".join(f"{key}: {_shown(value)}" for key, value in values.model_dump().items())
        lines.append(f"      {part}: {{{shown}}}")
    return "\n".join(lines)


def _shown(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{float(f'{value:.3g}'):g}"
