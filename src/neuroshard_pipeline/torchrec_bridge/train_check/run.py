"""Trains a model under several plans in turns, with one process per rank."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.ranks import join_ranks, rank_team
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams
from neuroshard_pipeline.workers import LocalTeam, TeamFailedError


class Turn(NamedTuple):
    """Consecutive steps under the plan with the index `plan`; the number of a step determines its batch."""

    plan: int
    first_step: int
    steps: int


#: For every step of a turn, the mean loss of this rank's samples and the duration of the step in milliseconds.
Steps = list[tuple[float, float]]


def train_under_plans(
    plans: Sequence[Plan],
    batches: Sequence[Batch],
    params: TrainingParams,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> pd.DataFrame:
    """Train the same model from the same weights with the same batches under every plan, in turns.

    The ranks hold the models of all plans at the same time. The turns of every plan can therefore be spread over the
    whole run, so that a disturbance of the machine affects all plans alike.

    Args:
        plans: plans of one task, each made by a different sharder.
        batches: global batches, which are trained in a cycle.
        params: parameters of the model, of its training and of the timed steps.
        progress: wraps the iteration over rounds.

    Returns:
        One row per plan and step: `sharder, round, step, loss, step_ms, timed`. `loss` is the mean over the global
        batch before the update of the step, `step_ms` the mean over ranks, and `timed` is False for warm-up steps.

    Raises:
        RankError: the machine has too few GPUs.
        TrainCheckError: a rank failed or hung; the other ranks are stopped.
    """
    steps = params.warmup_steps + params.steps_per_round
    rng = np.random.default_rng(params.seed)
    frames = []
    with training_team(plans, batches, params) as team:
        for number in progress(range(params.rounds)):
            for plan in rng.permutation(len(plans)).tolist():
                answers = ask(team, Turn(plan, number * steps, steps), plans[plan].sharder, params.timeout_s)
                frames.append(_frame(plans[plan].sharder, number, answers, params.warmup_steps))
    return pd.concat(frames, ignore_index=True)


def training_team(
    plans: Sequence[Plan], batches: Sequence[Batch], params: TrainingParams
) -> AbstractContextManager[LocalTeam]:
    """A team of one process per rank (`ranks.rank_team`), whose jobs are turns.

    Raises:
        RankError: the backend is nccl and the machine has fewer GPUs than ranks.
    """
    return rank_team(plans[0].task.world_size, set_up_rank, (plans, batches, params), params)


def ask(team: LocalTeam, turn: Turn, sharder: str, timeout_s: float) -> list[Steps]:
    """Train a turn and return the steps of every rank.

    Raises:
        TrainCheckError: a rank died, failed or did not answer in time.
    """
    try:
        return team.ask(turn, timeout_s)
    except TeamFailedError as problem:
        raise TrainCheckError(
            f"training under the plan of {sharder} stopped at steps {turn.first_step} to "
            f"{turn.first_step + turn.steps - 1}: {problem}; the worker's number is its rank"
        ) from problem


def _frame(sharder: str, number: int, answers: list[Steps], warmup_steps: int) -> pd.DataFrame:
    """One row per step of a turn, with means over the ranks; `answers` holds the steps of every rank."""
    means = np.mean(np.array(answers), axis=0)  # (steps, 2), over ranks
    at = np.arange(len(means))
    return pd.DataFrame(
        {
            "sharder": sharder,
            "round": number,
            "step": number * len(means) + at,
            "loss": means[:, 0],
            "step_ms": means[:, 1],
            "timed": at >= warmup_steps,
        }
    )


def set_up_rank(
    rank: int, plans: Sequence[Plan], batches: Sequence[Batch], params: TrainingParams, store_file: str
) -> Callable[[Turn], Steps]:
    """Join the process group and shard the model under every plan; the returned function trains a turn.

    TorchRec is imported here, in the process of the rank.
    """
    task = plans[0].task
    device = join_ranks(rank, task.world_size, params, store_file, task.local_world_size)
    return RankTrainer(plans, batches, params, device).train


class RankTrainer:
    """The sharded models of one rank, one per plan, and this rank's share of every batch."""

    def __init__(
        self, plans: Sequence[Plan], batches: Sequence[Batch], params: TrainingParams, device: torch.device
    ) -> None:
        from neuroshard_pipeline.torchrec_bridge.train_check.model import dense_optimizer, keyed_ids, shard_model

        self._device = device
        share = len(batches[0].labels) // dist.get_world_size()
        part = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        names = [table.name for table in plans[0].task.tables]
        self._batches = [
            (
                torch.from_numpy(batch.dense[part]).to(device),
                keyed_ids(names, batch.ids, part).to(device),
                torch.from_numpy(batch.labels[part]).to(device),
            )
            for batch in batches
        ]
        self._models = [shard_model(plan, params, device) for plan in plans]
        self._optimizers = [dense_optimizer(model, params) for model in self._models]

    def train(self, turn: Turn) -> Steps:
        """Wait until all ranks have reached the turn, train its steps and return their losses and durations."""
        dist.barrier()
        return [self._step(turn.plan, number) for number in range(turn.first_step, turn.first_step + turn.steps)]

    def _step(self, plan: int, number: int) -> tuple[float, float]:
        start = time.perf_counter()
        dense, ids, labels = self._batches[number % len(self._batches)]
        optimizer = self._optimizers[plan]
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self._models[plan](dense, ids), labels)
        loss.backward()
        optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return loss.item(), 1000.0 * (time.perf_counter() - start)
