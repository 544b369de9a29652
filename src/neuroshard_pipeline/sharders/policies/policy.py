"""A trained policy: its weights, how it plays, and where it lies on disk.

Shapes: U units (tables), B rollouts, W ranks, F table features, K rank features, D numbers of a table's representation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.cost_models import checkpoint
from neuroshard_pipeline.errors import CostModelError, NeuroShardError
from neuroshard_pipeline.search.simulator import FloatArray, IntArray
from neuroshard_pipeline.sharders.policies.episode import RANK_FEATURES, TABLE_FEATURES, BoolArray, Episode, Game
from neuroshard_pipeline.sharders.policies.networks import NETWORKS

COMMAND = "kedro run --pipeline train_policies"

_SCALING = ("tables.mean", "tables.scale")


class PolicyError(NeuroShardError):
    """A policy is missing, incompatible or broken."""


@dataclass(frozen=True)
class Played:
    """Rollouts that are over.

    Attributes:
        ranks: (U, B) the rank of every unit, in the order of play.
        embedding_cost_ms: (B,) predicted cost; infinite where a unit found no rank.
        compute_ms: (B, W) predicted compute cost per rank.
        seen: (U, B, W, K) rank features, or empty where nothing was recorded.
        allowed: (U, B, W) where units could go, likewise.
        alive: (U, B) whether the rollout was still in when the unit had been placed.
    """

    ranks: IntArray
    embedding_cost_ms: FloatArray
    compute_ms: FloatArray
    seen: NDArray[np.float32]
    allowed: BoolArray
    alive: BoolArray


@dataclass(frozen=True)
class Policy:
    """Places the tables of any task one after the other; NumPy only.

    Attributes:
        kind: a key of `NETWORKS`.
        weights: arrays of that network.
        mean: (F,) of the table features of the training tasks.
        scale: (F,) their standard deviation.
        provenance: versions and hardware of the cost models that rewarded it, training settings; JSON values.
    """

    kind: str
    weights: dict[str, NDArray[Any]]
    mean: FloatArray
    scale: FloatArray
    provenance: dict[str, Any] = field(default_factory=dict)

    def tables_of(self, game: Game) -> FloatArray:
        """(U, F) table features as the network sees them."""
        return (game.tables - self.mean) / self.scale

    def play(
        self,
        game: Game,
        rollouts: int,
        rng: np.random.Generator,
        *,
        explore_all: bool = False,
        record: bool = False,
    ) -> Played:
        """Play a game several times at once.

        Args:
            game: what is played.
            rollouts: how many times.
            rng: draws the ranks of every rollout but the first, which takes the rank of the highest score.
            explore_all: draw those of the first as well, as training does.
            record: keep what was seen.
        """
        network, world_size, units = NETWORKS[self.kind], game.kinds.task.world_size, len(game.order)
        own = network.represent(np, self.weights, self.tables_of(game))  # (U, D)
        carried = np.zeros((rollouts, world_size, own.shape[1]))
        episode = Episode(game, rollouts)
        ranks = np.zeros((units, rollouts), dtype=np.int64)
        recorded: list[tuple[FloatArray, BoolArray, BoolArray]] = []
        for step in range(units):
            seen, allowed = episode.look(step)
            scores = network.scores(self.weights, own[step][None, None], carried * (world_size / units), seen)
            noise = rng.gumbel(size=scores.shape)  # the largest of scores + noise is a draw from their softmax
            if not explore_all:
                noise[0] = 0.0
            ranks[step] = np.where(allowed, scores + noise, -np.inf).argmax(axis=1)
            episode.place(step, ranks[step], allowed)
            carried[np.arange(rollouts), ranks[step]] += own[step]
            if record:
                recorded.append((seen, allowed, episode.alive))
        seen_all, allowed_all, alive_all = ([row[i] for row in recorded] for i in range(3))
        return Played(
            ranks,
            episode.embedding_cost_ms,
            episode.compute_ms,
            np.array(seen_all, dtype=np.float32),
            np.array(allowed_all, dtype=bool),
            np.array(alive_all, dtype=bool),
        )

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`."""
        description = {
            "policy": self.kind,
            "table_features": list(TABLE_FEATURES),
            "rank_features": list(RANK_FEATURES),
            "provenance": self.provenance,
        }
        arrays = {**self.weights, **dict(zip(_SCALING, (self.mean, self.scale), strict=True))}
        checkpoint.save_checkpoint(folder, "Policy", description, arrays)

    @classmethod
    def load(cls, folder: Path | str) -> Policy:
        """Read what `save` wrote; plays identically, and never unpickles.

        Raises:
            PolicyError: missing, truncated or incompatible files; names file and remedy.
        """
        try:
            return cls._load(folder)
        except CostModelError as error:
            raise PolicyError(str(error).replace(checkpoint.REMEDY, f"train it again with: {COMMAND}")) from error

    @classmethod
    def _load(cls, folder: Path | str) -> Policy:
        stored = checkpoint.load_checkpoint(folder, "Policy")
        kind = stored.field("policy")
        if kind not in NETWORKS:
            raise PolicyError(f"{folder}: policy {kind!r} is unknown; use one of {', '.join(NETWORKS)}")
        stored.require({"table_features": list(TABLE_FEATURES), "rank_features": list(RANK_FEATURES)})
        names = set(NETWORKS[kind].shapes(1, 1, 1))
        arrays = stored.take(names | set(_SCALING))
        return cls(
            kind=kind,
            weights={name: arrays[name] for name in names},
            mean=arrays[_SCALING[0]],
            scale=arrays[_SCALING[1]],
            provenance=stored.field("provenance"),
        )


@dataclass(frozen=True)
class Policies:
    """The policies at hand; None for one that was not trained."""

    autoshard: Policy | None = None
    dreamshard: Policy | None = None

    def of(self, name: str) -> Policy:
        """The policy of the sharder `name`.

        Raises:
            PolicyError: there is none; names the command that trains it.
        """
        policy: Policy | None = getattr(self, name)
        if policy is None:
            raise PolicyError(
                f"sharder {name!r} needs its trained policy; train it with: {COMMAND}, then plan with it in Python, "
                "handing over policies=load_policies('data/06_models'), or in: kedro run --pipeline benchmark"
            )
        return policy


#: What sharders are set up with where nobody hands over policies.
NO_POLICIES = Policies()


def load_policies(path: Path | str = "data/06_models", version: str | None = None) -> Policies:
    """Load the policies that were trained.

    Args:
        path: folder that holds `autoshard_policy/<version>/` and `dreamshard_policy/<version>/`.
        version: a version that both have; None for the newest of each.

    Raises:
        PolicyError: a policy or version is missing; names the folder, the available versions and the remedy.
    """
    folders = {name: Path(path) / f"{name}_policy" for name in NETWORKS}
    return Policies(
        **{
            name: Policy.load(checkpoint.version_folder(folder, version, "policy", COMMAND, PolicyError))
            for name, folder in folders.items()
        }
    )
