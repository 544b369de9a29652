"""Trains a model under several plans in turns, between real processes."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd

from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.errors import TrainCheckError
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.rank import Steps, Turn, set_up_rank
from neuroshard_pipeline.workers import LocalTeam, TeamFailedError

STEP_COLUMNS = ("sharder", "round", "step", "loss", "step_ms", "timed")


def train_under_plans(
    plans: Sequence[Plan],
    batches: Sequence[Batch],
    params: TrainingParams,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> pd.DataFrame:
    """Train the same model from the same weights with the same batches under every plan, in turns.

    All plans have their model on the ranks at the same time, so that a plan's turns lie minutes apart and every plan
    meets the machine in the same moods.

    Args:
        plans: of one task, each of another sharder.
        batches: global batches, trained one after the other and again from the first.
        params: how.
        progress: wraps the iteration over rounds.

    Returns:
        One row per plan and step: `sharder, round, step, loss, step_ms, timed`. `loss` is the mean over the global
        batch before the step's update, `step_ms` the mean over ranks, `timed` is False for warm-up steps.

    Raises:
        TrainCheckError: the machine lacks GPUs, or a rank failed or hung; no other rank is left waiting.
    """
    steps = params.warmup_steps + params.steps_per_round
    rng = np.random.default_rng(params.seed)
    frames = []
    with training_team(plans, batches, params) as team:
        for number in progress(range(params.rounds)):
            for plan in rng.permutation(len(plans)).tolist():
                answers = ask(team, Turn(plan, number * steps, steps), plans[plan].sharder, params.timeout_s)
                frames.append(_frame(plans[plan].sharder, number, answers, params.warmup_steps))
    return pd.concat(frames, ignore_index=True).astype({"timed": bool})


@contextmanager
def training_team(plans: Sequence[Plan], batches: Sequence[Batch], params: TrainingParams) -> Iterator[LocalTeam]:
    """One process per rank; they start with the first turn and are gone when the context ends."""
    world_size = plans[0].task.world_size
    _check_devices(world_size, params)
    with tempfile.TemporaryDirectory() as folder:
        team = LocalTeam(
            world_size,
            set_up_rank,
            lambda: (world_size, plans, batches, params, f"{folder}/{uuid.uuid4().hex}"),
            spawn=params.backend == "nccl",
            preload=PRELOAD,
        )
        try:
            yield team
        finally:
            team.kill()


def ask(team: LocalTeam, turn: Turn, sharder: str, timeout_s: float) -> list[Steps]:
    """What every rank says of a turn.

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


def _check_devices(world_size: int, params: TrainingParams) -> None:
    if params.backend == "nccl":
        import torch

        if torch.cuda.device_count() < world_size:
            raise TrainCheckError(
                f"backend nccl needs a GPU for each of {world_size} ranks, but this machine shows "
                f"{torch.cuda.device_count()}; lower train_check.task.world_size or set train_check.training.backend "
                "to gloo"
            )


def _frame(sharder: str, number: int, answers: list[Steps], warmup_steps: int) -> pd.DataFrame:
    """The steps of one turn; a rank's answer is a pair (loss, ms) per step."""
    means = np.mean(np.array(answers), axis=0)  # (steps, 2), over ranks
    first_step = number * len(means)
    rows = [
        (sharder, number, first_step + at, loss, step_ms, at >= warmup_steps)
        for at, (loss, step_ms) in enumerate(means.tolist())
    ]
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS))
