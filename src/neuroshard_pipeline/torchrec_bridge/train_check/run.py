"""Trains models under several plans in turns, with one process per rank."""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from neuroshard_pipeline.evaluation.steps import plans_to_time
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import Group, MakeSteps, step_groups, timed_groups
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network

#: Parts of a training step, in the order in which they run. Waiting for other ranks counts where it happens. Gradients
#: of a replicated dense network are reduced behind the backward pass; what is left of it ends `embedding_backward_ms`.
PARTS = ("embedding_forward_ms", "dense_forward_ms", "dense_backward_ms", "embedding_backward_ms", "optimizer_ms")


def train_under_plans(
    plans: Sequence[Plan],
    batches: Sequence[Batch],
    params: TrainingParams,
    progress: Callable[[Sequence[Group]], Iterable[Group]] = iter,
) -> pd.DataFrame:
    """Train every model from the same weights with the same batches under every plan and dense mode, in turns.

    The ranks hold all models at the same time. The turns of each can therefore be spread over the whole run, so that a
    disturbance of the machine affects all alike. One plan is measured twice (`evaluation.steps.plans_to_time`). The
    plans are of one task, each made by a different sharder; the batches are trained in a cycle.

    Returns:
        One row per step and rank, with networks also per network: `task_id, sharder, model, dense, network, round,
        step, rank`; `loss`, the mean over the rank's samples before the update of the step; `step_ms` and its `PARTS`;
        `timed`, False for warm-up steps. `steppers.training_steps` names the rows of the parts alone.

    Raises:
        RankError: the machine has too few GPUs, or virtual ranks cannot run as asked.
        TrainCheckError: a rank failed or hung; the other ranks are stopped.
    """
    networks = {
        name: modelled_network(network_preset(name, plans[0].task.ranks_per_host)) for name in params.networks
    } or None
    modules = len(params.models) * len(params.dense)
    groups = list(step_groups(plans_to_time(plans), {plans[0].task.task_id: batches}, params, modules))
    found = [frame for _, frame in timed_groups(progress(groups), params, networks, _training_steps)]
    steps = pd.concat(found, ignore_index=True)
    if steps["error"].notna().any():
        raise TrainCheckError(str(steps["error"].dropna().iloc[0]))
    return steps if networks else steps.assign(network="")


def _training_steps() -> MakeSteps:
    from neuroshard_pipeline.torchrec_bridge.train_check.steppers import training_steps

    return training_steps
