"""Measures the steps of random plans."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import pandas as pd

from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.ranks import RankError
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import (
    BACKWARD_PARTS,
    INPUT_DIST_PARTS,
    STEP_PARTS,
    Group,
    measure_steps,
    task_batches,
)
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network

#: Other programs only add time to a step. The lower quartile is therefore disturbed less than the median.
_QUANTILE = 0.25
#: Columns of the result, with one row per plan and rank. Times are lower quartiles over the plan's timed steps.
#: `step_ms` is the time of the slowest rank, and the parts are those of the row's rank. The last three are missing for
#: ranks that are not virtual.
COLUMNS = ("task_id", "sharder", "rank", "step_ms", *STEP_PARTS, *BACKWARD_PARTS, "computed_ms", *INPUT_DIST_PARTS)

_PLAN = ["task_id", "sharder"]


def measure_step_costs(
    plans: Sequence[Plan],
    params: StepParams,
    progress: Callable[[Sequence[Group]], Iterable[Group]] = iter,
    network: NetworkParams | None = None,
) -> pd.DataFrame:
    """Time steps of TorchRec's embedding module under every plan; the plans of one task take turns.

    Plans of one world size must follow each other and have equal numbers of hosts. `progress` wraps the iteration over
    groups of plans. With a network, ranks are virtual. The result is a frame of `COLUMNS`.

    Raises:
        RankError: a plan cannot be measured, the machine has too few GPUs, or a rank failed.
    """
    frames, networks = [], None if network is None else {"modelled": modelled_network(network)}
    for _, own in groupby(plans, key=lambda plan: plan.task.world_size):
        of_world = list(own)
        steps = measure_steps(of_world, task_batches(of_world, params), params, progress, networks)
        for error in steps["error"].dropna():
            raise RankError(error)
        frames.append(_quartiles(steps))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def _quartiles(steps: pd.DataFrame) -> pd.DataFrame:
    timed = steps[steps["timed"]].reindex(columns=[*COLUMNS, "step"])
    slowest = timed.groupby([*_PLAN, "step"])["step_ms"].max().groupby(_PLAN).quantile(_QUANTILE)
    parts = timed.groupby([*_PLAN, "rank"])[list(COLUMNS[4:])].quantile(_QUANTILE)
    return parts.join(slowest).reset_index()[list(COLUMNS)]


def measures_steps(compute_backend: str, comm_backend: str, params: StepParams) -> bool:
    """Whether lookups and collectives have the device and the network of the steps.

    The prices of steps say what a step costs beside lookups and collectives. Steps, lookups and collectives must
    therefore be measured on one machine. With a modelled network, the steps run on virtual ranks, which are CPUs.
    """
    kinds = {"gloo": ("fbgemm_cpu", ("gloo", "topology")), "nccl": ("fbgemm_cuda", ("nccl",))}
    kernels, networks = kinds[params.backend]
    return compute_backend == kernels and comm_backend in networks
