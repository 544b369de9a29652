"""The shipped modelled clusters and data sheets: parts of the section `lab` of conf/base/parameters_lab.yml."""

from neuroshard_pipeline.errors import MeasurementError, did_you_mean
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.params import lab_values


def network_names() -> list[str]:
    """Names of all modelled clusters."""
    return list(lab_values()["networks"])


def network_preset(name: str) -> NetworkParams:
    """A modelled cluster.

    Raises:
        MeasurementError: the name is unknown.
    """
    presets = lab_values()["networks"]
    if name not in presets:
        raise MeasurementError(
            f"network {name!r} is not one of {', '.join(presets)} (conf/base/parameters_lab.yml); `make fit-network "
            f"LOG=...` fits another cluster to a log of nccl-tests{did_you_mean(name, presets)}"
        )
    return NetworkParams(**presets[name])
