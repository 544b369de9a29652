"""Trains AutoShard's and DreamShard's policies by policy gradients (REINFORCE), rewarded by predicted costs.

Shapes: U units (tables), B rollouts, W ranks, D numbers of a table's representation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.greedy import GREEDY_WEIGHTS, GreedySharder
from neuroshard_pipeline.sharders.policies.episode import RANK_FEATURES, Game, game_of
from neuroshard_pipeline.sharders.policies.networks import NETWORKS
from neuroshard_pipeline.sharders.policies.params import PolicyTrainParams
from neuroshard_pipeline.sharders.policies.policy import Played, Policy, PolicyError
from neuroshard_pipeline.sharders.policies.tasks import PolicyTasks
from neuroshard_pipeline.tables.task import ShardingTask

PROGRESS_COLUMNS = ["policy", "step", "reward", "entropy", "cost_ratio", "validation_ratio"]

#: Gradients are clipped to this norm, so that a single lucky rollout does not undo earlier training.
_MAX_GRADIENT = 1.0

#: Upper limit of a cost ratio: the predicted cost of a policy's plan divided by that of the best greedy plan.
_MAX_RATIO = 2.0

Wrap = Callable[[Iterable[int]], Iterable[int]]


def solvable_games(
    tasks: Sequence[ShardingTask], models: Models, memory: MemoryModel
) -> tuple[list[Game], list[float]]:
    """Games of the tasks that a greedy heuristic solves, and the predicted cost in ms of the best greedy plan of each.

    The other tasks cannot be used for training: most have a table that fits no rank as a whole.
    """
    games, greedy_ms = [], []
    for task in tasks:
        problem = Problem(task, models, memory)
        costs = [cost for name in GREEDY_WEIGHTS if (cost := _greedy_ms(name, problem)) is not None]
        if costs:
            games.append(game_of(problem))
            greedy_ms.append(min(costs))
    return games, greedy_ms


def train_policy(
    kind: str,
    tasks: PolicyTasks,
    models: Models,
    memory: MemoryModel,
    params: PolicyTrainParams,
    provenance: dict[str, Any],
    progress: Wrap = iter,
) -> tuple[Policy, pd.DataFrame]:
    """Train a policy and keep the weights with the best validation result.

    Args:
        kind: a key of `NETWORKS`.
        tasks: training tasks, and the validation tasks that decide which weights are kept.
        models: cost models that predict rewards.
        memory: what counts against the memory of a rank.
        params: how to train.
        provenance: JSON values to store with the policy.
        progress: wraps the steps, for example in a progress bar.

    Returns:
        The policy, and a row of `PROGRESS_COLUMNS` per step. Both ratios divide the predicted cost of the policy's
        plans by that of the best greedy plans. `cost_ratio` is the mean over the step's drawn rollouts.
        `validation_ratio` is `cost_ratio()` on the validation tasks, or null in a step without validation.

    Raises:
        PolicyError: greedy heuristics solve fewer than `tasks_per_step` training tasks, or no validation task.
    """
    started = time.perf_counter()
    training, held_out = (solvable_games(part, models, memory) for part in (tasks.training, tasks.validation))
    if len(training[0]) < params.tasks_per_step or not held_out[0]:
        raise _few_games(kind, tasks, (len(training[0]), len(held_out[0])), params.tasks_per_step)
    best, best_ratio, frame = _train(_Learner(kind, *training, params), held_out, progress)
    stored = {
        **provenance,
        "training": params.model_dump(),
        "training_tasks": len(training[0]),
        "validation_ratio": best_ratio,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return Policy(kind, best.weights, best.mean, best.scale, stored), frame


def _few_games(kind: str, tasks: PolicyTasks, solved: tuple[int, int], tasks_per_step: int) -> PolicyError:
    return PolicyError(
        f"{kind}: greedy heuristics solve {solved[0]} of {len(tasks.training)} training tasks with whole tables, and "
        f"{solved[1]} of {len(tasks.validation)} validation tasks; {tasks_per_step} (tasks_per_step) and 1 are needed; "
        "draw more tasks, or raise memory_bytes or lower memory_fill of augment.sharding_tasks"
    )


def _train(
    learner: _Learner, held_out: tuple[list[Game], list[float]], progress: Wrap
) -> tuple[Policy, float, pd.DataFrame]:
    """The policy with the best validation ratio, this ratio, and a row of `PROGRESS_COLUMNS` per step."""
    params = learner.params
    best, best_ratio, rows = learner.policy(), np.inf, []
    for step in progress(range(params.steps)):
        row = learner.update(step)
        ratio = None
        if (step + 1) % params.validate_every == 0 or step + 1 == params.steps:
            ratio = cost_ratio(learner.policy(), *held_out)
            if ratio < best_ratio:
                best, best_ratio = learner.policy(), ratio
        rows.append((learner.kind, step, *row, ratio))
    return best, best_ratio, pd.DataFrame(rows, columns=PROGRESS_COLUMNS).astype({"validation_ratio": float})


def cost_ratio(policy: Policy, games: Sequence[Game], greedy_ms: Sequence[float]) -> float:
    """Predicted cost of the policy's plans divided by that of the best greedy plans, as the mean over games.

    The policy gives every table to the rank with the highest score. A ratio above `_MAX_RATIO` counts as `_MAX_RATIO`,
    and so does a game without a plan.
    """
    rng = np.random.default_rng(0)  # not used by the first rollout, which takes the highest scores
    costs = [float(policy.play(game, 1, rng).embedding_cost_ms[0]) for game in games]
    return float(np.mean([min(cost / greedy, _MAX_RATIO) for cost, greedy in zip(costs, greedy_ms, strict=True)]))


class _Learner:
    """The weights that are being trained, their optimizer, and the random generator of the training."""

    def __init__(self, kind: str, games: list[Game], greedy_ms: list[float], params: PolicyTrainParams):
        self.kind, self.games, self.greedy_ms, self.params = kind, games, greedy_ms, params
        features = np.concatenate([game.tables for game in games])
        self.mean, self.scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
        generator = torch.Generator().manual_seed(params.seed)
        self.rng = np.random.default_rng(params.seed)
        shapes = NETWORKS[kind].shapes(features.shape[1], len(RANK_FEATURES), params.hidden)
        self.weights = {name: _initial(name, shape, generator) for name, shape in shapes.items()}
        self.optimizer = torch.optim.Adam(self.weights.values(), lr=params.learning_rate)

    def policy(self) -> Policy:
        """The policy with a copy of the current weights."""
        weights = {name: weight.detach().numpy().copy() for name, weight in self.weights.items()}
        return Policy(self.kind, weights, self.mean, self.scale)

    def update(self, step: int) -> tuple[float, float, float]:
        """Play some tasks and take a gradient step; returns the means of reward, entropy and cost ratio."""
        left = 1.0 - step / self.params.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.params.learning_rate * left
        chosen = self.rng.choice(len(self.games), self.params.tasks_per_step, replace=False)
        policy, losses, means = self.policy(), [], []
        for index in chosen.tolist():
            game, greedy_ms = self.games[index], self.greedy_ms[index]
            played = policy.play(game, self.params.rollouts, self.rng, explore_all=True, record=True)
            rewards = _rewards(played, self.params.reward, greedy_ms)
            log_prob, entropy = self._replay(policy.tables_of(game), played)
            advantage = torch.tensor((rewards - rewards.mean()) / (rewards.std() + 1e-6), dtype=torch.float32)
            losses.append(-(log_prob * advantage).mean() - self.params.entropy_bonus * left * entropy)
            ratio = np.minimum(played.embedding_cost_ms / greedy_ms, _MAX_RATIO)
            means.append((rewards.mean(), float(entropy.detach()), ratio.mean()))
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), _MAX_GRADIENT)
        self.optimizer.step()
        reward, entropy_mean, ratio_mean = np.mean(means, axis=0).tolist()
        return reward, entropy_mean, ratio_mean

    def _replay(self, tables: FloatArray, played: Played) -> tuple[Tensor, Tensor]:
        """(B,) mean log-probability of the choices of every rollout, and the mean entropy of all choices."""
        network, world_size, units = NETWORKS[self.kind], played.compute_ms.shape[1], len(tables)
        own = network.represent(torch, self.weights, torch.tensor(tables, dtype=torch.float32))  # (U, D)
        chosen = torch.nn.functional.one_hot(torch.from_numpy(played.ranks), world_size).float()  # (U, B, W)
        placed = chosen[..., None] * own[:, None, None]  # (U, B, W, D)
        carried = (placed.cumsum(dim=0) - placed) * (world_size / units)
        scores = network.scores(self.weights, own[:, None, None], carried, torch.from_numpy(played.features))
        log_prob = torch.log_softmax(scores.masked_fill(~torch.from_numpy(played.allowed), -1e9), dim=-1)
        alive = torch.from_numpy(played.alive).float()  # (U, B)
        entropy = -(log_prob.exp() * log_prob).sum(dim=-1)
        counted = alive.sum().clamp(min=1.0)
        return ((log_prob * chosen).sum(dim=-1) * alive).mean(dim=0), (entropy * alive).sum() / counted


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("bias"):
        return torch.zeros(shape, requires_grad=True)
    spread = 1.0 / np.sqrt(shape[0])
    return (torch.randn(shape, generator=generator) * spread).requires_grad_()


def _rewards(played: Played, reward: str, greedy_ms: float) -> FloatArray:
    """(B,) rewards; higher is better.

    Rollouts that ended early get the lowest reward of the finished ones minus the standard deviation of these.
    """
    if reward == "balance":
        compute = played.compute_ms
        found = compute.min(axis=1) / np.maximum(compute.max(axis=1), 1e-9)
    else:
        found = -played.embedding_cost_ms / greedy_ms
    finished = np.isfinite(played.embedding_cost_ms)
    worst = found[finished].min() if finished.any() else 0.0
    spread = found[finished].std() if finished.any() else 0.0
    return np.where(finished, found, worst - spread)


def _greedy_ms(name: str, problem: Problem) -> float | None:
    """Predicted cost in ms of a heuristic's plan, or None if the heuristic finds no plan."""
    try:
        placement = GreedySharder(name).shard(problem, np.random.default_rng(0))
    except DoesNotFitError:
        return None
    return price_plan(problem, placement, name).predicted_cost_ms
