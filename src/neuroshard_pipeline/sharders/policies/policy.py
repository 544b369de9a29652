"""A trained policy: its weights, how it plays a game, and its files.

Shapes: U units (tables), B rollouts, W ranks, F table features, K rank features, D numbers of a table's representation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.cost_models import checkpoint
from neuroshard_pipeline.errors import CostModelError, NeuroShardError
from neuroshard_pipeline.sharders.policies.episode import RANK_FEATURES, TABLE_FEATURES, Episode, Game
from neuroshard_pipeline.sharders.policies.networks import NETWORKS

COMMAND = "kedro run --pipeline train_policies"

_SCALING = ("tables.mean", "tables.scale")


class PolicyError(NeuroShardError):
    """A policy is missing, incompatible or broken."""


@dataclass(frozen=True)
class Played:
    """Finished rollouts.

    Attributes:
        ranks: (U, B) the rank of every unit, in the order of play.
        embedding_cost_ms: (B,) predicted cost; infinite for a rollout in which a unit found no rank.
        compute_ms: (B, W) predicted compute cost per rank.
        features: (U, B, W, K) rank features. `features`, `allowed` and `alive` are empty if steps were not recorded.
        allowed: (U, B, W) whether the unit could be placed on the rank.
        alive: (U, B) whether the rollout placed this unit and all units before it on allowed ranks.
    """

    ranks: IntArray
    embedding_cost_ms: FloatArray
    compute_ms: FloatArray
    features: NDArray[np.float32]
    allowed: BoolArray
    alive: BoolArray


@dataclass(frozen=True)
class Policy:
    """A network that places the tables of any task one after the other; uses NumPy only.

    Attributes:
        kind: a key of `NETWORKS`.
        weights: weights of that network.
        mean: (F,) mean of the table features of the training tasks.
        scale: (F,) standard deviation of these features.
        provenance: versions and hardware of the cost models, and the training settings; JSON values.
    """

    kind: str
    weights: dict[str, NDArray[Any]]
    mean: FloatArray
    scale: FloatArray
    provenance: dict[str, Any] = field(default_factory=dict)

    def tables_of(self, game: Game) -> FloatArray:
        """(U, F) normalised table features, the input of the network."""
        return (game.tables - self.mean) / self.scale

    def play(
        self, game: Game, rollouts: int, rng: np.random.Generator, *, explore_all: bool = False, record: bool = False
    ) -> Played:
        """Play several rollouts of a game at once.

        Args:
            game: the sharding problem, prepared for policies.
            rollouts: number of rollouts.
            rng: draws the ranks of all rollouts but the first. The first takes the rank with the highest score.
            explore_all: draw the ranks of the first rollout as well, for training.
            record: keep the observations of every step.
        """
        network, world_size, units = NETWORKS[self.kind], game.problem.task.world_size, len(game.order)
        own = network.represent(np, self.weights, self.tables_of(game))  # (U, D)
        carried = np.zeros((rollouts, world_size, own.shape[1]))
        episode = Episode(game, rollouts)
        ranks = np.zeros((units, rollouts), dtype=np.int64)
        recorded: list[tuple[FloatArray, BoolArray, BoolArray]] = []
        for step in range(units):
            features, allowed = episode.observe(step)
            scores = network.scores(self.weights, own[step][None, None], carried * (world_size / units), features)
            noise = rng.gumbel(size=scores.shape)  # argmax(scores + noise) is a draw from softmax(scores)
            if not explore_all:
                noise[0] = 0.0
            ranks[step] = np.where(allowed, scores + noise, -np.inf).argmax(axis=1)
            episode.place(step, ranks[step], allowed)
            carried[np.arange(rollouts), ranks[step]] += own[step]
            if record:
                recorded.append((features, allowed, episode.alive))
        steps = (np.array([row[i] for row in recorded], dtype) for i, dtype in enumerate((np.float32, bool, bool)))
        return Played(ranks, episode.embedding_cost_ms, episode.compute_ms, *steps)

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
        """Read the files that `save` wrote; the policy plays identically. Nothing is unpickled.

        Raises:
            PolicyError: a file is missing, truncated or incompatible; the message names file and remedy.
        """
        try:
            stored = checkpoint.load_checkpoint(folder, "Policy")
            kind = stored.field("policy")
            if kind not in NETWORKS:
                raise PolicyError(f"{folder}: policy {kind!r} is unknown; use one of {', '.join(NETWORKS)}")
            stored.require({"table_features": list(TABLE_FEATURES), "rank_features": list(RANK_FEATURES)})
            names = set(NETWORKS[kind].shapes(1, 1, 1))
            arrays = stored.take(names | set(_SCALING))
            weights = {name: arrays[name] for name in names}
            mean, scale = (arrays[name] for name in _SCALING)
            return cls(kind, weights, mean, scale, stored.field("provenance"))
        except CostModelError as error:
            raise PolicyError(str(error).replace(checkpoint.REMEDY, f"train it again with: {COMMAND}")) from error


@dataclass(frozen=True)
class Policies:
    """The policies that sharders can use; None for one that was not loaded."""

    autoshard: Policy | None = None
    dreamshard: Policy | None = None

    def of(self, name: str) -> Policy:
        """The policy of the sharder `name`.

        Raises:
            PolicyError: the policy was not loaded; the message says how to train it and how to load it.
        """
        policy: Policy | None = getattr(self, name)
        if policy is None:
            raise PolicyError(
                f"sharder {name!r} needs its trained policy; train it with: {COMMAND}, then use it in Python with "
                "policies=load_policies('data/06_models'), or in: kedro run --pipeline benchmark"
            )
        return policy


#: No policy is available.
NO_POLICIES = Policies()


def load_policies(path: Path | str = "data/06_models", version: str | None = None) -> Policies:
    """Load trained policies.

    Args:
        path: folder that holds `autoshard_policy/<version>/` and `dreamshard_policy/<version>/`.
        version: a version that both policies have; None for the newest version of each.

    Raises:
        PolicyError: a policy or version is missing, or its files cannot be used; the message names folder and remedy.
    """
    folders = {name: Path(str(path)) / f"{name}_policy" for name in NETWORKS}
    return Policies(
        **{
            name: Policy.load(checkpoint.version_folder(folder, version, "policy", COMMAND, PolicyError))
            for name, folder in folders.items()
        }
    )
