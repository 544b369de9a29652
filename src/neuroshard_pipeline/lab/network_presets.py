"""The shipped modelled clusters and data sheets: parts of the section `lab` of conf/base/parameters_lab.yml."""

from neuroshard_pipeline.errors import MeasurementError, did_you_mean
from neuroshard_pipeline.lab.clusters import NetworkSheets
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
