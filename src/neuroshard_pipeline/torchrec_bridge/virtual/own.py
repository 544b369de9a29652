"""What a person's own training step costs on more ranks, with a modelled network between them."""

import inspect
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch.distributed as dist

from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.torchrec_bridge.ranks import RankError, RankParams, rank_team
from neuroshard_pipeline.torchrec_bridge.virtual.group import join_virtual_ranks
from neuroshard_pipeline.torchrec_bridge.virtual.log import StepLog
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network
from neuroshard_pipeline.torchrec_bridge.virtual.replay import Turn, replayed_steps
from neuroshard_pipeline.workers import LocalTeam, TeamFailedError

#: `set_up(rank, world_size, *arguments)` makes the model of a rank, and returns the function that runs a training step.
SetUpSteps = Callable[..., Callable[[], Any]]

_PARAMS = RankParams(backend="gloo", threads=1, timeout_s=600)
_WARMUP_STEPS = 4  # DistributedDataParallel arranges its buckets, and memory is allocated


def step_times(
    set_up: SetUpSteps,
    world_size: int,
    networks: Mapping[str, NetworkParams],
    arguments: Sequence[Any] = (),
    *,
    ranks_per_host: int | None = None,
    steps: int = 20,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> pd.DataFrame:
    """Run training steps on virtual ranks, and replay them with every network. An interrupt ends all ranks.

    Args:
        set_up: a function of a module or of the main script (see `SetUpSteps`), which runs in the process of a rank,
            after that has joined the process group.
        world_size: number of ranks.
        networks: the networks, by name.
        arguments: further arguments of `set_up`, which must be picklable; for example the plan.
        ranks_per_host: number of ranks that TorchRec treats as one host; None for all of them.
        steps: number of steps that count, after a few others.
        progress: wraps the iteration over all steps, such as `tqdm.tqdm`, which estimates the time.

    Returns:
        One row per network, step and rank: `network, step, rank, step_ms`, and the parts of `step_ms`: `computed_ms`,
        `transfer_ms`, `waiting_ms` (`replay.RankTimes`). Steps with equal collectives count as equal steps.

    Raises:
        RankError: a rank failed, or `set_up` is not in a file.
    """
    rank_arguments = world_size, ranks_per_host, _reference(set_up), tuple(arguments)
    with rank_team(world_size, set_up_rank, rank_arguments, _PARAMS) as team:
        logs = [_ask(team, number) for number in progress(range(_WARMUP_STEPS + steps))][_WARMUP_STEPS:]
    rows = [
        {"network": name, "step": step, "rank": rank, "step_ms": own.marks_ms[-1], **asdict(own)}
        for name, params in networks.items()
        for step, times in replayed_steps(logs, _turns(logs), modelled_network(params))
        for rank, own in enumerate(times)
    ]
    return pd.DataFrame(rows).drop(columns="marks_ms").sort_values(["network", "step", "rank"], ignore_index=True)


def _turns(logs: Sequence[Sequence[StepLog]]) -> list[Turn]:
    """Steps with other collectives may also compute more, so they count as another taker."""
    kinds: dict[object, int] = {}
    structures = [tuple(log.structure for log in of_ranks) for of_ranks in logs]
    return [Turn(step, kinds.setdefault(each, len(kinds))) for step, each in enumerate(structures)]


def _ask(team: LocalTeam, number: int) -> list[StepLog]:
    """Run a step, and return the log of every rank."""
    try:
        return team.ask(None, _PARAMS.timeout_s)
    except TeamFailedError as problem:
        raise RankError(f"step {number} stopped: {problem}; the worker's number is its rank") from problem


def _reference(set_up: SetUpSteps) -> SetUpSteps | tuple[str, str]:
    """The function, or the file and the name of a function of the main script, which ranks do not import."""
    if set_up.__module__ != "__main__":
        return set_up
    file = inspect.getsourcefile(set_up)
    if file is None or not Path(file).exists():
        raise RankError(f"{set_up.__qualname__} is not in a file, so the ranks cannot import it; put it into a module")
    return str(Path(file).resolve()), set_up.__qualname__


def set_up_rank(
    rank: int,
    world_size: int,
    ranks_per_host: int | None,
    reference: SetUpSteps | tuple[str, str],
    arguments: tuple[Any, ...],
    store_file: str,
) -> Callable[[None], StepLog]:
    """Join the group and make the model; the returned function runs one step."""
    log = join_virtual_ranks(rank, world_size, _PARAMS, store_file, ranks_per_host)
    set_up = runpy.run_path(reference[0])[reference[1]] if isinstance(reference, tuple) else reference
    step = set_up(rank, world_size, *arguments)

    def run(_: None) -> StepLog:
        dist.barrier()
        log.now()
        step()
        log.now()
        return log.finish()

    return run
