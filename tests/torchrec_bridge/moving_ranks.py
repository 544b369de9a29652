"""What the ranks of test_moving.py do: train a small model under plans of all types, move it, save it and load it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec_bridge.drawn_plans import TYPES, plan_of_types
from torchrec_bridge.training import sharded

import neuroshard_pipeline as ns
from neuroshard_pipeline.replanning.moved import moved_bytes, port_bytes
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.torchrec_bridge.moving import checkpoint, load, move, save

SAMPLES, RATE = 32, 0.1
#: Seeds of plans from which models move. Column shards of table `a` have unequal widths, and are on different ranks.
SEED = 29
#: Ranks per host by world size.
HOSTS = {2: 2, 4: 2}
OPTIMIZERS = {"rowwise": RowWiseAdagrad, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
#: States of dense optimizers, and their names for sharded tables.
NAMES = {"sum": "momentum1", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


class Model(nn.Module):
    """Two pooled tables, one sequence table, and a dense layer; the rows of two tables cannot be cut evenly."""

    def __init__(self, rows: int = 40, more: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        pooled = [("a", rows, 16), ("b", 31, 8), *([("c", 30, 8)] if more else [])]
        self.bags = EmbeddingBagCollection([_config(EmbeddingBagConfig, *each) for each in pooled])
        self.words = EmbeddingCollection([_config(EmbeddingConfig, "s", 37, 8)])
        self.dense = nn.Linear(16, 1)

    def forward(self, ids: KeyedJaggedTensor, words: KeyedJaggedTensor) -> torch.Tensor:
        bags = self.bags(ids)
        sums = torch.segment_reduce(self.words(words)["s"].values(), "sum", lengths=words.lengths().long())
        return self.dense(bags["a"]).squeeze(1) + bags["b"].sin().sum(dim=1) + sums.tanh().sum(dim=1)


def _config(kind: type, name: str, rows: int, columns: int) -> object:
    return kind(num_embeddings=rows, embedding_dim=columns, name=name, feature_names=[name])


class Job:
    """A model under a random plan with tables of one type, and its optimizers."""

    def __init__(self, kind: str, optimizer: str, seed: int, **tables: object) -> None:
        model, world = Model(**tables), dist.get_world_size()
        self.is_rowwise, self.is_sgd = optimizer == "rowwise", optimizer == "sgd"
        for table in (*model.bags.parameters(), *model.words.parameters()):
            apply_optimizer_in_backward(OPTIMIZERS[optimizer], [table], {"lr": RATE})
        self.plan = plan_of_types(model, world, HOSTS[world], [kind], seed)
        self.model = sharded(model, self.plan.to_torchrec(model, HOSTS[world], "cpu"))
        self.blocks = {(s.table.name, s.column_offset, s.embedding_dim) for s in self.plan.shards}
        dense = dict(in_backward_optimizer_filter(self.model.named_parameters()))
        network = [dense.pop(name) for name in ("dense.weight", "dense.bias")]
        self.optimizers = [torch.optim.Adam(network, lr=RATE)]
        self.optimizers += [OPTIMIZERS[optimizer](list(dense.values()), lr=RATE)] if dense else []

    def train(self, *steps: int) -> torch.Tensor:
        """The mean loss of all ranks in every step."""
        losses = []
        for step in steps:
            loss = self.model(*_batch(step)).square().mean()
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        found = torch.stack(losses)
        dist.all_reduce(found)
        return found / dist.get_world_size()

    def shards(self) -> dict[str, list]:
        """This rank's parts of all weights and states, from what TorchRec itself says: offsets, and values.

        States of row-wise Adagrad are repeated for all columns of their shard.
        """
        weights = self.model.state_dict()
        own = {name: _shards(value) for name, value in weights.items()}
        for name, states in self.model.fused_optimizer.state_dict()["state"].items():
            for key, value in states.items():
                shards = zip(_shards(weights[name]), value.local_shards(), strict=True)
                own[f"{name} {key.split('.')[1]}"] = [(at, _as(w, s.tensor)) for (at, w), s in shards]
        for name, parameter in self.model.named_parameters():
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if key in NAMES:
                        own[f"{name} {NAMES[key]}"] = [((0,) * parameter.dim(), _as(parameter.detach(), value))]
        return own

    def tensors(self) -> dict[str, torch.Tensor]:
        """All weights and states of all ranks, put together."""
        arrays = {name: [(at, tensor.numpy()) for at, tensor in shards] for name, shards in self.shards().items()}
        ranks = _gathered(arrays)
        return {name: _joined([each for of in ranks for each in of.get(name, [])]) for name in set().union(*ranks)}


def _gathered(own: object) -> list:
    gathered: list = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return gathered


def _shards(value: object) -> list:
    if not hasattr(value, "local_shards"):
        return [((0,) * value.dim(), value.detach())]
    return [(tuple(each.metadata.shard_offsets), each.tensor.detach()) for each in value.local_shards()]


def _as(weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A state with a number per element of the weights."""
    return state.reshape(len(weight), -1).expand(weight.shape).clone() if weight.dim() > 1 else state.clone()


def _joined(shards: list) -> torch.Tensor:
    size = [max(at[dim] + array.shape[dim] for at, array in shards) for dim in range(shards[0][1].ndim)]
    whole = torch.full(size, torch.nan)
    for at, array in shards:
        whole[_place(at, array)] = torch.from_numpy(array)
    return whole


def _place(offsets: tuple, part: object) -> tuple[slice, ...]:
    return tuple(slice(first, first + size) for first, size in zip(offsets, part.shape, strict=True))


def _batch(step: int) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    """This rank's part of a batch that is the same for every number of ranks."""
    rank, part = dist.get_rank(), SAMPLES // dist.get_world_size()
    drawn = torch.randint(0, 24, (4, SAMPLES, 3), generator=torch.Generator().manual_seed(step))
    mine = drawn[:, rank * part : (rank + 1) * part]
    lengths = torch.full((part,), 3)
    bags = KeyedJaggedTensor(["a", "b"], mine[:2].flatten(), lengths=lengths.repeat(2))
    return bags, KeyedJaggedTensor(["s"], mine[3].flatten(), lengths=lengths)


def check_tensors(job: Job, before: dict[str, torch.Tensor]) -> None:
    """Assert that this rank has its part of `before`, bit by bit, and that no tensor is missing on all ranks.

    A state of row-wise Adagrad is the mean of what the columns of its shard had before.
    """
    own = job.shards()
    assert set().union(*_gathered([*own])) == before.keys()
    for name, (at, tensor) in ((name, shard) for name, shards in own.items() for shard in shards):
        expected = before[name][_place(at, tensor)]
        if job.is_rowwise and name.endswith("momentum1"):
            mean = expected.mean(dim=1, keepdim=True).expand_as(tensor)
            torch.testing.assert_close(tensor, mean, rtol=1e-6, atol=0, msg=name)
        else:
            assert torch.equal(tensor, expected), name


def check_goes_on(job: Job, losses: torch.Tensor, blocks: set) -> torch.Tensor:
    """Train a job on, assert that its losses are these, and return them.

    Row-wise Adagrad has a state per block of columns: losses after the first one are those of before only if the blocks
    are.
    """
    found = job.train(3, 4)
    known = 1 if job.is_rowwise and job.blocks != blocks else len(losses)
    torch.testing.assert_close(found[:known], losses[:known], rtol=1e-5, atol=1e-6)
    return found


def predicted_bytes(job: Job, other: Job) -> int:
    """The most bytes that a rank receives or sends, as `ns.replan` predicts them."""
    return port_bytes(moved_bytes(Present.of(job.plan), other.plan.shards, other.plan.ranks, other.plan.task))


def saved(rank: int, world_size: int, folder: str) -> None:
    """Train a model of every type with row-wise Adagrad, and save it for `loaded_and_moved`."""
    for number, kind in enumerate(TYPES):
        job, path = Job(kind, "rowwise", seed=SEED + number), f"{folder}/rowwise-{kind}-{world_size}"
        job.train(0)
        before = _saved(path, job)
        _note(rank, path, before, job.train(3, 4), job.blocks)


def moved(rank: int, world_size: int, optimizer: str, types: Sequence[str], folder: str) -> None:  # noqa: ARG001
    """Move a trained model of each of these types to each of them; the first trains on, and loads a checkpoint."""
    jobs = _jobs(optimizer, types)
    for number, kind in enumerate(types):
        job, others = Job(kind, optimizer, seed=SEED + number), _turned(jobs, number + 1)
        job.train(0)
        before = _saved(f"{folder}/{optimizer}-{kind}", job)
        _move(job, others)
        losses = job.train(3, 4)
        for other in others:
            check_tensors(other, before)
        check_goes_on(others[0], losses, job.blocks)
        load(f"{folder}/{optimizer}-{kind}", others[0].model, others[0].optimizers)
        check_tensors(others[0], before)


def loaded_and_moved(rank: int, world_size: int, folder: str, written_by: int) -> None:
    """Load the checkpoints that another number of ranks has written, and train on.

    4 ranks load each under its own type, save it for 2 ranks and move it to all others; 2 ranks load another type's.
    """
    jobs = _jobs("rowwise", TYPES)
    for number, kind in enumerate(TYPES):
        path = f"{folder}/rowwise-{kind}-{written_by}"
        before, losses, blocks = torch.load(f"{path}.pt")
        job, *others = _turned(jobs, number if world_size == 4 else number + 3)
        load(path, job.model, job.optimizers)
        check_tensors(job, before)
        if world_size == 2:
            check_goes_on(job, losses, blocks)
            continue
        before = _saved(f"{folder}/rowwise-{kind}-4", job)
        _move(job, others)
        losses = check_goes_on(job, losses, blocks)
        _note(rank, f"{folder}/rowwise-{kind}-4", before, losses, job.blocks)
        for other in others:
            check_tensors(other, before)
        check_goes_on(others[0], losses, job.blocks)


def _jobs(optimizer: str, types: Sequence[str]) -> list[Job]:
    """A job for each of these types."""
    return [Job(kind, optimizer, seed=SEED + 1 + number) for number, kind in enumerate(types)]


def _turned(jobs: list[Job], number: int) -> list[Job]:
    """The same jobs, from that with this number on."""
    first = number % len(jobs)
    return jobs[first:] + jobs[:first]


def _saved(path: str, job: Job) -> dict[str, torch.Tensor]:
    """Save a job, and return all that it has."""
    save(path, job.model, job.optimizers)
    return job.tensors()


def _note(rank: int, path: str, *expected: object) -> None:
    """Write what a job had when it was saved, its next losses, and its blocks, beside its checkpoint."""
    if rank == 0:
        torch.save(expected, f"{path}.pt")


def _move(job: Job, others: list[Job]) -> None:
    """Move a job to each of the others, which replaces all weights and states of these."""
    for other in others:
        sent = move(job.model, other.model, job.optimizers, other.optimizers)
        assert not job.is_sgd or sent == predicted_bytes(job, other)


def killed_while_saving(rank: int, world_size: int, folder: str) -> None:  # noqa: ARG001
    """Rank 1 dies after it has written its tensors."""
    job = Job("row_wise", "adagrad", seed=0)
    job.train(0)
    if rank == 1:
        write = checkpoint.dcp.FileSystemWriter.write_data
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint.dcp.FileSystemWriter, "write_data", lambda *given: (write(*given).wait(), _die()))
            save(f"{folder}/killed", job.model, job.optimizers)
    save(f"{folder}/killed", job.model, job.optimizers)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refusals(rank: int, world_size: int, folder: str) -> None:  # noqa: ARG001
    """What cannot be loaded or moved is refused on all ranks, with a message that says what to do."""
    job, grown = Job("row_wise", "rowwise", seed=0), Job("column_wise", "rowwise", seed=0, rows=64, more=True)
    path, initial, error = f"{folder}/rowwise-row_wise-2", grown.tensors(), ns.NeuroShardError
    with pytest.raises(error, match="killed holds no checkpoint, or its job was killed"):
        load(f"{folder}/killed", job.model, job.optimizers)
    with pytest.raises(error, match="row_wise-2 holds a checkpoint; give every checkpoint a folder"):
        save(path, job.model, job.optimizers)
    with pytest.raises(error, match=r"lacks the tensor 'bags.embedding_bags.c.weight'; give new=True"):
        load(path, grown.model, grown.optimizers)
    with pytest.raises(error, match=r"a.weight', .* is not that in .*: \(40, 16\) there and \(64, 16\) here"):
        move(job.model, Job("column_wise", "rowwise", seed=0, rows=64).model)
    with pytest.raises(error, match=r"has no exp_avg, exp_avg_sq of 'dense.(bias|weight)'; give the optimizers"):
        load(path, job.model)
    with pytest.raises(error, match="the Model is not sharded"):
        save(f"{folder}/new", Model())
    load(path, grown.model, grown.optimizers, new=True)
    found, (before, *_) = grown.tensors(), torch.load(f"{path}.pt")
    assert torch.equal(found["bags.embedding_bags.a.weight"][:40], before["bags.embedding_bags.a.weight"])
    assert torch.equal(found["bags.embedding_bags.a.weight"][40:], initial["bags.embedding_bags.a.weight"][40:])
    assert torch.equal(found["bags.embedding_bags.c.weight"], initial["bags.embedding_bags.c.weight"])
