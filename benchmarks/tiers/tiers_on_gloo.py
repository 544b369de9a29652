"""Runs steps of sequence modules under several plans with gloo, one process per rank, on one host or on emulated hosts.

`bench_tiers.py` and `measured_models.py` use it. A step sends ids, looks rows up, returns them and sends gradients
back, as in the pipeline `truth`. After every step, its communication is timed alone: every rank repeats its collectives
with buffers of the same sizes, and does nothing in between. On emulated hosts, the bytes on the wire are those
that Linux counted.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_two_hosts import inside, set_rate, two_hosts
from replayed_collectives import replayed_ms

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import parent_tables
from neuroshard_pipeline.torchrec_bridge.ranks import RankParams, join_ranks

SOURCE = Path(__file__).resolve().parents[2] / "src"
#: Counters of the network devices of this process's namespace; the tenth word of a line is the number of sent bytes.
COUNTERS = Path("/proc/self/net/dev")
LEARNING_RATE = 0.01
PARAMS = RankParams(backend="gloo", threads=1, timeout_s=600)


@dataclass(frozen=True)
class Job:
    """What the ranks run.

    Attributes:
        plans: plans of one task, by name.
        popular: row numbers of every table, most popular row first; at least those of its hot and host tiers.
        batches: global batches of ids, in the order of the model's tables.
        rounds: number of rounds; in each one, every plan runs.
        steps: steps of a plan in one round, the first of which is not timed.
    """

    plans: Mapping[str, Plan]
    popular: Mapping[str, IntArray]
    batches: Sequence[tuple[TableIds, ...]]
    rounds: int
    steps: int


@dataclass(frozen=True)
class Measured:
    """Medians over steps of what one plan costs.

    Attributes:
        step_ms: the whole step on the slowest rank.
        comm_ms: the collectives of the step alone, on the slowest rank.
        across_bytes: bytes that all ranks send to other hosts in collectives, or to other ranks if there is one host.
        reduced_bytes: the part of `across_bytes` that reductions of gradients send.
        inside_bytes: bytes that ranks send to other ranks of their host, if there are several hosts.
        wire_bytes: bytes that the wire between two hosts carried, in both directions; None with one host.
    """

    step_ms: float
    comm_ms: float
    across_bytes: float
    reduced_bytes: float
    inside_bytes: float
    wire_bytes: float | None


def measure(job: Job, mbit: float | None) -> dict[str, Measured]:
    """Run the job on this host, or on two emulated hosts whose wire has a bandwidth of `mbit` Mbit/s."""
    found = on_ranks(__file__, job, next(iter(job.plans.values())).task, mbit)
    return {plan: _summary([of_rank[plan] for of_rank in found], mbit is not None) for plan in job.plans}


def on_ranks(program: str, job: Any, task: ShardingTask, mbit: float | None) -> list[Any]:
    """Run `program` in one process per rank of a task, and return what each rank stored.

    Args:
        program: a script with the arguments folder, rank, number of ranks and ranks per host. It reads `folder/job`,
            and writes `folder/rank_<rank>`.
        job: what the ranks read.
        task: the task; it gives the number of ranks and the ranks per host.
        mbit: bandwidth of the wire between two emulated hosts; None for one host.
    """
    if mbit is None:
        return _run(program, job, task, None)
    with two_hosts() as hosts:
        set_rate(hosts, mbit)
        return _run(program, job, task, hosts)


def _run(program: str, job: Any, task: ShardingTask, hosts: tuple[int, int] | None) -> list[Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "job", job)
        sizes = str(task.world_size), str(task.ranks_per_host)
        ranks = [_start([program, name, str(rank), *sizes], rank, task, hosts) for rank in range(task.world_size)]
        try:
            codes = [rank.wait(PARAMS.timeout_s) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise SystemExit(f"ranks ended with {codes}; see their errors above")
        return [read(folder / f"rank_{rank}") for rank in range(task.world_size)]


def _start(
    arguments: list[str], rank: int, task: ShardingTask, hosts: tuple[int, int] | None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    if hosts is not None:
        command = inside(hosts[rank // task.ranks_per_host], command)
        environment |= {"GLOO_SOCKET_IFNAME": "wire"}
    return subprocess.Popen(command, env=environment)


def _summary(ranks: Sequence[Mapping[str, list[float]]], has_wire: bool) -> Measured:
    """Combine what the ranks recorded; the time of a step is that of its slowest rank."""
    of = {name: np.array([rank[name] for rank in ranks]) for name in ranks[0]}  # (W, steps)
    total = {name: float(np.median(of[name].sum(axis=0))) for name in ("across", "reduced", "inside")}
    wire = None if not has_wire else float(np.median(of["wire"].sum(axis=0)))
    slowest = {name: float(np.median(of[name].max(axis=0))) for name in ("step_ms", "comm_ms")}
    return Measured(slowest["step_ms"], slowest["comm_ms"], total["across"], total["reduced"], total["inside"], wire)


class Steps:
    """The modules of one plan on this rank."""

    def __init__(self, plan: Plan, popular: Mapping[str, IntArray], groups: Any) -> None:
        import torch
        from torchrec.distributed import DistributedModelParallel
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

        from neuroshard_pipeline.torchrec_bridge.tiered import put_tiers
        from neuroshard_pipeline.torchrec_bridge.truth.embeddings import OPTIMIZER_CLASSES, unsharded_embeddings

        unsharded = unsharded_embeddings(parent_tables(plan.task))
        optimizer = OPTIMIZER_CLASSES[plan.task.optimizer]
        apply_optimizer_in_backward(optimizer, unsharded.parameters(), {"lr": LEARNING_RATE})
        rows = {name: torch.from_numpy(of_table) for name, of_table in popular.items()}
        sharded = DistributedModelParallel(
            unsharded,
            device=torch.device("cpu"),
            plan=put_tiers(unsharded, plan, rows, groups),
            sharders=[EmbeddingCollectionSharder()],
            init_data_parallel=False,
        )
        self._collections = [sharded.module[name] for name in unsharded]

    def step(self, ids: Any) -> None:
        """One step with gradients of ones."""
        import torch

        keyed = ids.keyed()
        contexts = [collection.create_context() for collection in self._collections]
        sent = [c.input_dist(*of) for c, *of in zip(self._collections, contexts, keyed, strict=True)]
        received = [sizes.wait().wait() for sizes in sent]
        found = [c.compute(*of) for c, *of in zip(self._collections, contexts, received, strict=True)]
        outputs = [c.output_dist(*of) for c, *of in zip(self._collections, contexts, found, strict=True)]
        rows = [each.values() for output in outputs for each in output.wait().values()]
        torch.autograd.backward(rows, [torch.ones_like(each) for each in rows])


def run_rank(folder: Path, rank: int, world_size: int, per_host: int) -> None:
    """Run the job on this rank and store what was recorded, by plan and quantity, one number per timed step."""
    join_ranks(rank, world_size, PARAMS, str(folder / "store"), per_host)
    import torch.distributed as dist

    from neuroshard_pipeline.torchrec_bridge.tiered import rank_groups
    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import RankIds

    job: Job = read(folder / "job")
    groups = rank_groups(per_host)
    tables = parent_tables(next(iter(job.plans.values())).task)
    size = next(iter(job.plans.values())).task.batch_size // world_size
    part, device = slice(rank * size, (rank + 1) * size), _cpu()
    batches = [RankIds(tables, ids, part, device) for ids in job.batches]
    modules = {name: Steps(plan, job.popular, groups) for name, plan in job.plans.items()}
    place = _Place(rank, per_host, world_size)
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in modules}
    rng = np.random.default_rng(0)
    for number in range(job.rounds):
        for name in rng.permutation(list(modules)).tolist():
            for step in range(job.steps):
                record = _timed(modules[name], batches[(number + step) % len(batches)], place, groups)
                for quantity, value in record.items() if step else ():
                    found[name][quantity].append(value)
    write(folder / f"rank_{rank}", {name: dict(own) for name, own in found.items()})
    dist.barrier()
    dist.destroy_process_group()


@dataclass(frozen=True)
class _Place:
    """A rank, the ranks per host, and the number of ranks; with one host, every rank counts as a host."""

    rank: int
    per_host: int
    world_size: int

    @property
    def unit(self) -> int:
        return self.per_host if self.per_host < self.world_size else 1

    def wire_bytes(self) -> float:
        """Bytes that this host's end of the wire has sent; the first rank of a host reads them."""
        if self.rank % self.per_host or self.per_host == self.world_size:
            return 0.0
        lines = (line.split() for line in COUNTERS.read_text().splitlines())
        return sum(float(words[9]) for words in lines if words[0] == "wire:")


def _timed(module: Steps, ids: Any, place: _Place, groups: Any) -> dict[str, float]:
    """Time and bytes of one step, and the time of its collectives alone."""
    import torch.distributed as dist
    from traffic import recorded_traffic

    dist.barrier()
    before, start = place.wire_bytes(), time.perf_counter()
    with recorded_traffic() as calls:
        module.step(ids)
    elapsed = 1000.0 * (time.perf_counter() - start)
    dist.barrier()
    reductions = [call for call in calls if call.name == "all_reduce"]
    return {
        "step_ms": elapsed,
        "wire": place.wire_bytes() - before,
        "across": sum(call.crossing_bytes(place.unit) for call in calls),
        "reduced": sum(call.crossing_bytes(place.unit) for call in reductions),
        "inside": sum(call.inside_bytes(place.unit) for call in calls),
        "comm_ms": replayed_ms(calls, groups),
    }


def read(path: Path) -> Any:
    """What `write` stored."""
    return pickle.loads(path.read_bytes())  # noqa: S301 - this program wrote it


def write(path: Path, value: Any) -> None:
    """Store any value."""
    path.write_bytes(pickle.dumps(value))


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
