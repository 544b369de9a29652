"""The step cost model of a modelled cluster: its prices and costs of reductions follow the formulas of package `lab`.

A price is the cost of a unit of work in a training step; reductions are reduce_scatter, all_gather and all_reduce.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field, PositiveInt

from neuroshard_pipeline.cost_models.caveats import COSTS_ARE
from neuroshard_pipeline.cost_models.reduction_fitting import fit_reductions
from neuroshard_pipeline.cost_models.reductions import ReductionCosts
from neuroshard_pipeline.cost_models.step import PARTS, StepCostModel, fit_prices
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.network import NetworkParams, collective_us
from neuroshard_pipeline.lab.sequences import search_us_per_id
from neuroshard_pipeline.lab.step_groups import FLOAT_BYTES
from neuroshard_pipeline.lab.step_samples import StepSamples, step_samples
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.tables.step_work import QUANTITIES


class ModelledStepParams(Parameters):
    """How the step cost model of a modelled cluster is fitted to the lab.

    Attributes:
        world_sizes: numbers of ranks that have prices of their own.
        ranks_per_size: approximate number of samples (ranks of random plans) for the prices of one world size.
    """

    world_sizes: tuple[int, ...] = Field(min_length=1)
    ranks_per_size: PositiveInt


_MILLION = 1e6
#: Quantities whose prices are known, and which the costs of the samples leave out. The error of the fit takes 0 for
#: these prices. In the lab, all groups pay for launches and ids in the same way, the copy of reordered outputs pays for
#: its bytes, and a lookup of a sequence table for its rows: `modules`, `bucketized`, `permuted` and `unpooled` cost 0.
_NOT_FITTED = dict.fromkeys(
    ("modules", "bucketized", "unpooled", "permuted", "deduplicated", "kernels", "gathered"), 0.0
)
_FITTED = np.array([name not in _NOT_FITTED for name in QUANTITIES], dtype=float)  # (Q,)
#: Sizes of modelled reductions in bytes: two per factor of 2 from 256 B to 64 GiB.
_REDUCTION_BYTES = 2.0 ** np.arange(8, 36.5, 0.5)
#: Ranks per host of the groups whose all_reduce has a cost of its own, in addition to groups that fill hosts.
_RANKS_PER_HOST = (1, 2, 4)
#: One plan in this many is held out of the fit, to estimate the error of the prices.
_HELD_OUT = 4


def is_modelled(hardware: Mapping[str, Any]) -> bool:
    """Whether lookups and collectives on this hardware have modelled costs."""
    return hardware["compute_backend"] == "modelled" and hardware["comm_backend"] == "topology"


def step_model_of_hardware(hardware: Mapping[str, Any], params: ModelledStepParams) -> StepCostModel:
    """The step cost model of a modelled cluster, whose device and links `measure.hardware` describes."""
    device = ModelledDevice(**hardware["modelled_device"])
    network = NetworkParams(**{name: hardware["topology"][name] for name in NetworkParams.model_fields})
    return modelled_step_model(device, network, params.world_sizes, params.ranks_per_size, hardware)


def modelled_step_model(
    device: ModelledDevice,
    network: NetworkParams,
    world_sizes: Sequence[int],
    ranks_per_size: int,
    hardware: Mapping[str, Any],
) -> StepCostModel:
    """Fit prices to the lab's steps of random plans, and take costs of reductions from the lab."""
    prices: dict[int, dict[str, dict[str, float]]] = {}
    errors: dict[str, list[float]] = {part: [] for part in PARTS}
    for world_size in world_sizes:
        num_plans = max(ranks_per_size // world_size, 2 * _HELD_OUT)
        samples = step_samples(device, network, world_size, num_plans, np.random.default_rng(world_size))
        prices[world_size] = {part: _prices(part, samples) for part in PARTS}
        prices[world_size]["module"] |= {
            "host_link": device.host_link_us(_MILLION) / 1e3,
            "kernels": device.kernels.forward_launch_us / 1e3,
            "gathered": float(device.streamed_us(2 * FLOAT_BYTES * _MILLION)) / 1e3,
        }
        prices[world_size]["input_dist"]["deduplicated"] = search_us_per_id(device) * _MILLION / 1e3
        for part, of in prices[world_size].items():
            errors[part].append(_error(part, of | _NOT_FITTED, samples))
    provenance = {"hardware": dict(hardware), COSTS_ARE: {"prices": "modelled", "reductions": "modelled"}}
    mean_errors = {part: float(np.mean(of)) for part, of in errors.items()}
    return StepCostModel(prices, _reductions(network, world_sizes), mean_errors, provenance)


def _prices(part: str, samples: StepSamples) -> dict[str, float]:
    chosen = (samples.cost_ms[part] > 0) & (samples.plan % _HELD_OUT > 0)
    cost_ms = samples.cost_ms[part][chosen]
    return fit_prices(PARTS[part], samples.work[chosen] * _FITTED, cost_ms, cost_ms)


def _error(part: str, prices: Mapping[str, float], samples: StepSamples) -> float:
    """Mean relative error on plans that the prices were not fitted to; on all plans if none of those has the part."""
    paid = samples.cost_ms[part] > 0
    held_out = paid & (samples.plan % _HELD_OUT == 0)
    chosen = held_out if held_out.any() else paid
    predicted = samples.work[chosen] @ np.array([prices.get(name, 0.0) for name in QUANTITIES])
    return float(np.abs(predicted / samples.cost_ms[part][chosen] - 1.0).mean())


def _reductions(network: NetworkParams, world_sizes: Sequence[int]) -> ReductionCosts:
    rows = pd.DataFrame(_reduction_rows(network, world_sizes))
    samples = rows.drop(columns="cost_ms")
    return fit_reductions(samples, rows[["sample_id", "cost_ms"]].assign(error=None))[0]


def _reduction_rows(network: NetworkParams, world_sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    filled = {(world_size, network.hosts_of(world_size)) for world_size in world_sizes}
    # Gradients of rows that every host has, and weights of replica groups, are reduced among some ranks of every host.
    per_host = [count for count in _RANKS_PER_HOST if count < network.gpus_per_host]
    sparse = {(world_size, -(-world_size // count)) for world_size in world_sizes for count in per_host}
    for collective in REDUCTIONS:
        for world_size, hosts in sorted(filled | sparse if collective == "all_reduce" else filled):
            us = collective_us(collective, _REDUCTION_BYTES, world_size, hosts, network)
            for size, cost_us in zip(_REDUCTION_BYTES.tolist(), us.tolist(), strict=True):
                yield {
                    "sample_id": f"{collective}-{world_size}-{hosts}-{size:g}",
                    "collective": collective,
                    "world_size": world_size,
                    "hosts": hosts,
                    "size_bytes": size,
                    "cost_ms": cost_us / 1e3,
                }
