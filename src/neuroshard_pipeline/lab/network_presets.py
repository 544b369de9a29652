"""The shipped modelled clusters and data sheets: parts of the section `lab` of conf/base/parameters_lab.yml."""

import re

from neuroshard_pipeline.errors import MeasurementError, did_you_mean
from neuroshard_pipeline.lab.network import FabricParams, NetworkParams
from neuroshard_pipeline.lab.params import lab_values

_GBIT_PER_GB = 8.0
_ETHERNET_HOST = "h100-ib400"


def network_preset(name: str, ranks_per_host: int | None = None) -> NetworkParams:
    """A modelled cluster.

    Args:
        name: a key of `lab.networks`, or `ethernet-<Gbit/s>`, such as `ethernet-25` (`ethernet`).
        ranks_per_host: number of ranks of a host; None for that of the shipped cluster.

    Raises:
        MeasurementError: the name is unknown.
    """
    presets = lab_values()["networks"]
    if speed := re.fullmatch(r"ethernet-([1-9]\d*)", name):
        return ethernet(float(speed[1]), ranks_per_host or network_preset(_ETHERNET_HOST).gpus_per_host)
    if name not in presets:
        raise MeasurementError(
            f"network {name!r} is neither ethernet-<Gbit/s> nor one of {', '.join(presets)} "
            "(conf/base/parameters_lab.yml); `make fit-network LOG=...` fits another cluster to a log of nccl-tests"
            f"{did_you_mean(name, [*presets, 'ethernet-25'])}"
        )
    params = NetworkParams(**presets[name])
    return params.model_copy(update={"gpus_per_host": ranks_per_host or params.gpus_per_host})


def ethernet(gbit_per_s: float, ranks_per_host: int) -> NetworkParams:
    """A cluster whose hosts have the links of H100 hosts inside, and one Ethernet card each, which its ranks share.

    `gbit_per_s` is the card's bandwidth per direction in its data sheet. The latencies between hosts are typical of
    clouds, not measured.
    """
    values = dict(lab_values()["network_fit"]["cloud"])
    card = values.pop("card_share") * gbit_per_s / _GBIT_PER_GB / ranks_per_host
    fabric = FabricParams(**values, card_gb_per_s=card, trees=True)
    return network_preset(_ETHERNET_HOST, ranks_per_host).model_copy(update={"fabric": fabric})
