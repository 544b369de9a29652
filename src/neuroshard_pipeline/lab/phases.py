"""The phases of a step: work that every rank does alone, and collectives in which ranks wait for each other.

A collective starts when its last rank arrives; a message of an all-to-all, when both its ranks have arrived. The cost
is split into the transfer, which is the cost if all ranks arrive at the same time, and the waiting, which is the rest.
Work and collectives do not overlap. Shape: W ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.lab.network import NetworkParams, rank_costs_ms


@dataclass(frozen=True)
class Work:
    """Work of every rank on its own: a time in microseconds (W,) in a part of the step."""

    part: str
    us: FloatArray


@dataclass(frozen=True)
class Symmetric:
    """Collectives, each of one team (some or all ranks); all ranks of a team contribute equally.

    `us` is the time of the collective of each rank's team (W,), `team` the index of this team (W,).
    """

    part: str
    us: FloatArray
    team: IntArray


@dataclass(frozen=True)
class AllToAll:
    """An all-to-all of uneven messages: bytes that rank i sends to rank j, (W, W); the diagonal is ignored."""

    part: str
    message_bytes: FloatArray


Phase = Work | Symmetric | AllToAll


def run_phases(
    phases: Sequence[Phase], world_size: int, network: NetworkParams
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Run phases in order, from a common start.

    Returns:
        Milliseconds per part of the step without waiting, (W,) each; and the milliseconds of waiting, (W,).
    """
    clock, waiting = np.zeros(world_size), np.zeros(world_size)
    parts: dict[str, FloatArray] = {}
    for phase in phases:
        own_ms, waited_ms = _phase_ms(phase, clock, network)
        parts[phase.part] = parts.get(phase.part, np.zeros(world_size)) + own_ms
        waiting = waiting + waited_ms
        clock = clock + own_ms + waited_ms
    return parts, waiting


def _phase_ms(phase: Phase, clock: FloatArray, network: NetworkParams) -> tuple[FloatArray, FloatArray]:
    """Milliseconds of every rank in a phase, and of its waiting for other ranks, (W,) each."""
    if isinstance(phase, Work):
        return phase.us / 1e3, np.zeros(len(clock))
    if isinstance(phase, Symmetric):
        last = np.full(int(phase.team.max()) + 1, -np.inf)
        np.maximum.at(last, phase.team, clock)
        waited = np.where(phase.us > 0, last[phase.team] - clock, 0.0)
        return phase.us / 1e3, waited
    starts = np.stack([np.zeros(len(clock)), clock - clock.min()])
    together, apart = rank_costs_ms(np.stack([phase.message_bytes] * 2), starts, network)
    return together, np.maximum(apart - together, 0.0)
