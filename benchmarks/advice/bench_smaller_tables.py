r"""What do sampled bags and narrower embeddings save, and what do they cost in loss?

    python benchmarks/advice/bench_smaller_tables.py steps --data data    # after `make run`; 2 minutes, quiet cores
    python benchmarks/advice/bench_smaller_tables.py losses --data data   # 6 minutes on one core

It draws a task for two ranks: tables with bags of skewed lengths, and clicks that depend on the ids. `advise` names
limits of bags and widths (the last two points of its frontiers). `steps` prints predicted and measured steps of today's
plan, of these plans, and of as many columns given up by random tables; sampled bags contain the time of `sampled_bags`
itself, which it also prints. `losses` prints the loss on held-out samples of a factorisation machine with a small dense
part, trained with three seeds on the ids, the widths and the clicks of each case.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from bench_advice import ROOT, measured_ms
from torch import nn
from torchrec import KeyedJaggedTensor

import neuroshard_pipeline as ns
from neuroshard_pipeline.advice import Line, WhatIf
from neuroshard_pipeline.advice.lines import plan_line
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.id_batches import observed
from neuroshard_pipeline.torchrec_bridge import sampled_bags

WORLD, BATCH, TRAINED, HELD_OUT, SEEDS = 2, 2048, 250, 20, (0, 1, 2)
LATENT, COMMON = 8, 16
ROWS = (500, 1000, 2000, 4000, 8000, 500, 1000, 2000)
WIDTHS = (64, 64, 32, 64, 64, 32, 64, 64)
MEAN_LENGTHS = (40, 20, 10, 30, 1, 1, 5, 2)
NAMES = tuple(f"t{at}" for at in range(len(ROWS)))


class Clicks:
    """Batches of ids of skewed lengths and popularity, and clicks that depend on them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.latent = [self.rng.normal(size=(rows, LATENT)).astype(np.float32) for rows in ROWS]

    def batch(self) -> tuple[KeyedJaggedTensor, torch.Tensor]:
        """The ids of one batch, and its clicks (B,)."""
        lengths, ids, means = [], [], []
        for rows, mean, latent in zip(ROWS, MEAN_LENGTHS, self.latent, strict=True):
            drawn = np.maximum(self.rng.lognormal(np.log(mean) - 0.5, 1.0, BATCH).round(), 1).astype(np.int64)
            own = (rows * self.rng.random(drawn.sum()) ** 3).astype(np.int64)
            starts = np.concatenate([[0], np.cumsum(drawn)[:-1]])
            means.append(np.add.reduceat(latent[own], starts) / np.sqrt(drawn)[:, None])
            lengths.append(drawn)
            ids.append(own)
        vectors = np.array(means)
        total = vectors.sum(axis=0)
        logit = 0.12 * ((total**2).sum(axis=1) - (vectors**2).sum(axis=(0, 2))) / 2 + 0.3 * total[:, 0]
        clicks = self.rng.random(BATCH) < 1 / (1 + np.exp(-logit))
        flat = torch.from_numpy(np.concatenate(lengths).astype(np.int32))
        features = KeyedJaggedTensor(list(NAMES), torch.from_numpy(np.concatenate(ids)), lengths=flat)
        return features, torch.from_numpy(clicks.astype(np.float32))


class Model(nn.Module):
    """A factorisation machine over the tables' vectors, each projected to a common width, with a small dense part."""

    def __init__(self, widths: dict[str, int]) -> None:
        super().__init__()
        sizes = list(zip(ROWS, NAMES, strict=True))
        self.bags = nn.ModuleList([nn.EmbeddingBag(rows, widths[name], mode="mean") for rows, name in sizes])
        self.projections = nn.ModuleList([nn.Linear(widths[name], COMMON) for name in NAMES])
        self.dense = nn.Sequential(nn.Linear(COMMON + 1, 32), nn.ReLU(), nn.Linear(32, 1))
        for bag in self.bags:
            nn.init.normal_(bag.weight, std=0.05)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits (B,)."""
        found = []
        for name, bag, projection in zip(NAMES, self.bags, self.projections, strict=True):
            own = features[name]
            scale = own.lengths().clamp(min=1).sqrt()[:, None]
            found.append(projection(bag(own.values(), own.offsets()[:-1].long()) * scale))
        vectors = torch.stack(found)
        total = vectors.sum(dim=0)
        pairs = ((total**2).sum(dim=1, keepdim=True) - (vectors**2).sum(dim=(0, 2))[:, None]) / 2
        return (self.dense(torch.cat([total, pairs], dim=1)) + pairs)[:, 0]


def loss(seed: int, widths: dict[str, int], most: dict[str, int]) -> float:
    """Held-out loss after training with these widths and limits of bags."""
    torch.manual_seed(seed)
    clicks, model, criterion = Clicks(seed), Model(widths), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    held_out = []
    for number in range(TRAINED + HELD_OUT):
        features, labels = clicks.batch()
        value = criterion(model(sampled_bags(features, most, number)), labels)
        if number < TRAINED:
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        else:
            held_out.append(value.item())
    return float(np.mean(held_out))


def drawn_task() -> tuple[ns.ShardingTask, dict[str, np.ndarray]]:
    """The task with profiles counted in four batches, and the numbers of bags of every length."""
    clicks = Clicks(7)
    batches = [clicks.batch()[0] for _ in range(4)]
    tables, lengths = [], {}
    for name, rows, width in zip(NAMES, ROWS, WIDTHS, strict=True):
        own = [batch[name] for batch in batches]
        tables.append(observed(ns.Table(name, rows, width, 1.0), [ids.values().numpy() for ids in own], BATCH))
        lengths[name] = np.bincount(np.concatenate([ids.lengths().numpy() for ids in own]))
    return ns.ShardingTask(tables, WORLD, BATCH, 2**28, task_id="clicks"), lengths


def random_cuts(task: ns.ShardingTask, columns: float, seed: int) -> WhatIf:
    """Widths of random tables cut by half until as many columns are given up."""
    rng, widths = np.random.default_rng(seed), {table.name: table.embedding_dim for table in task.tables}
    while sum(WIDTHS) - sum(widths.values()) < columns:
        name = str(rng.choice(NAMES))
        widths[name] = max(4, widths[name] // 8 * 4)
    tables = [replace(table, embedding_dim=widths[table.name]) for table in task.tables]
    name = f"random tables narrower: {sum(WIDTHS) - sum(widths.values())} columns"
    return WhatIf(name, "random", lambda today: replace(today, tables=tables))


def transform_ms(most: dict[str, int]) -> float:
    """Median ms of `sampled_bags` for the samples of one rank, half of a batch."""
    features = Clicks(7).batch()[0]
    spent = []
    for number in range(30):
        start = time.perf_counter()
        sampled_bags(features, most, number)
        spent.append(1e3 * (time.perf_counter() - start))
    return float(np.median(spent)) / WORLD


def case(line: Line) -> tuple[dict[str, int], dict[str, int]]:
    """Widths of all tables and limits of bags in a line's task."""
    plan = line.plan
    assert plan is not None, f"{line.what_if.name}: {line.problem}"
    widths = {shard.table.name: shard.table.embedding_dim for shard in plan.shards}
    limits = re.findall(r"(\w+): at most (\d+)", line.what_if.setting)
    return widths, {name: int(limit) for name, limit in limits}


def steps(lines: list[Line], is_virtual: bool) -> None:
    """Print predicted and measured steps."""
    measured = measured_ms(lines, is_virtual)
    print("predicted ms  measured ms  of it sampling  case")
    for line in lines:
        most = case(line)[1]
        sampling = transform_ms(most) if most else 0.0
        total = measured[line.what_if.name] + sampling
        print(f"{line.step_ms:12.2f} {total:12.2f} {sampling:15.2f}  {line.what_if.name} ({line.what_if.setting})")


def losses(lines: list[Line], is_virtual: bool) -> None:  # noqa: ARG001
    """Print losses of all seeds, their mean, and the mean difference from today's of the same seed."""
    today = None
    for line in lines:
        found = np.array([loss(seed, *case(line)) for seed in SEEDS])
        today = found if today is None else today
        shown = " ".join(f"{value:.4f}" for value in found)
        print(f"{shown}  mean {found.mean():.4f} ({(found - today).mean():+.4f})  {line.what_if.name}", flush=True)


def main() -> None:
    """Answer the question of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["steps", "losses"])
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="data folder of a finished run")
    parser.add_argument("--virtual", action="store_true", help="virtual ranks, for busy cores")
    arguments = parser.parse_args()
    models = ns.load_cost_models(arguments.data / "06_models")
    torch.set_num_threads(1)
    task, lengths = drawn_task()
    advice = ns.advise(task, models, pairs=0, lengths=lengths)
    frontiers = advice.frontiers()
    points = [*frontiers["fewer ids per bag"][-2:], *frontiers["narrower embeddings"][-2:]]
    columns = frontiers["narrower embeddings"][-1].what_if.given_up
    drawn = [plan_line(task, models, SharderSettings(), 0, advice.today, random_cuts(task, columns, s)) for s in (1, 2)]
    lines = [advice.today, *points, *drawn]
    {"steps": steps, "losses": losses}[arguments.question](lines, arguments.virtual)


if __name__ == "__main__":
    main()
