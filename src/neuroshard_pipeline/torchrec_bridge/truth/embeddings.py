"""TorchRec's embedding module under one plan, on one rank, and one timed step of it.

Shapes: B samples of this rank, D the sum of the widths of all features of a module.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.overrides import TorchFunctionMode

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.ids import TableIds, feature_lengths
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_bridge.train_check.model import keyed_ids, share_of_rank
from neuroshard_pipeline.torchrec_bridge.truth.params import TurnParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import Group, RunStep, Span
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import feature_names, meta_collection

require_torchrec()
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad  # noqa: E402
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor  # noqa: E402

#: The optimizer class of every name in `tables.task.OPTIMIZERS`.
OPTIMIZER_CLASSES: dict[str, Any] = {"sgd": optim.SGD, "rowwise_adagrad": RowWiseAdagrad, "adam": optim.Adam}


def tables_by_module(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """The tables of every embedding module, by a name that PyTorch accepts, in the order of the tables.

    Sequence tables, and tables with weighted ids, are in TorchRec modules of their own.
    """
    found: dict[tuple[str, bool, bool], list[Table]] = {}
    for table in tables:
        found.setdefault((table.module, table.pooling == "none", table.is_weighted), []).append(table)
    return {f"module_{at}": own for at, own in enumerate(found.values())}


def unsharded_embeddings(tables: Sequence[Table]) -> nn.ModuleDict:
    """One collection on the meta device per module; `feature_names` gives the features of a table."""
    of_modules = tables_by_module(tables).items()
    return nn.ModuleDict({name: meta_collection({table.name: table for table in own}) for name, own in of_modules})


class RankIds:
    """This rank's ids of one global batch.

    Every step builds new `KeyedJaggedTensor`s from them, because such a tensor caches the sums of its lengths, which a
    training step computes for every batch.
    """

    def __init__(self, tables: Sequence[Table], ids: Sequence[TableIds], part: slice, device: torch.device) -> None:
        of_table = {table.name: own for table, own in zip(tables, ids, strict=True)}
        self._parts = []
        for own in tables_by_module(tables).values():
            names = [name for table in own for name in feature_names(table.name, table)]
            of_features = [each for table in own for each in ids_of_features(of_table[table.name], table.num_features)]
            keyed = keyed_ids(names, of_features, part).to(device)
            weights = torch.ones(len(keyed.values()), device=device) if own[0].is_weighted else None
            self._parts.append((names, keyed.values(), weights, keyed.lengths()))

    def keyed(self) -> list[KeyedJaggedTensor]:
        """The ids of every module, as a data loader hands them to a training step."""
        return [KeyedJaggedTensor(*names_and_values, lengths=lengths) for *names_and_values, lengths in self._parts]


def ids_of_features(ids: TableIds, num_features: int) -> list[TableIds]:
    """Deal the ids of every sample to the features of a table in turn."""
    lengths = np.diff(ids.offsets)
    feature = (np.arange(len(ids.indices)) - np.repeat(ids.offsets[:-1], lengths)) % num_features
    dealt = feature_lengths(lengths, num_features)
    return [TableIds(ids.indices[feature == at], np.concatenate([[0], np.cumsum(own)])) for at, own in enumerate(dealt)]


#: Gives the moment now, after all work of the device: a time in ms, or the number of a mark of a virtual rank.
Clock = Callable[[], float]


def device_clock(device: torch.device) -> Clock:
    """The time in ms, after all work of the device."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1000.0 * time.perf_counter()

    return now


class Stopwatch:
    """Spans of time between marks."""

    def __init__(self, now: Clock) -> None:
        self.now = now
        self.spans: list[Span] = []
        self._start = self._last = now()

    def mark(self, part: str) -> None:
        """Add the time since the last mark to `part`."""
        now = self.now()
        self.spans.append((part, self._last, now))
        self._last = now

    @property
    def total(self) -> Span:
        """The span between the start and the last mark."""
        return "step_ms", self._start, self._last


def embedding_steps(
    group: Group, params: TurnParams, device: torch.device, now: Clock | None
) -> list[tuple[dict[str, Any], RunStep]]:
    """What takes turns (`steps.MakeSteps`): the embedding modules alone under every plan."""
    task = group.plans[0].task
    batches = [RankIds(task.tables, batch.ids, share_of_rank(task), device) for batch in group.batches]

    def steps(plan: Plan) -> RunStep:
        module = ShardedEmbeddings(plan, params, device, now)
        return lambda number: ({}, module.step(batches[number % len(batches)]))

    return [({"task_id": task.task_id, "sharder": plan.sharder}, steps(plan)) for plan in group.plans]


class _ZeroWeights(TorchFunctionMode):
    """Replaces drawn weights by zeros: TorchRec draws them twice, which took longer than all steps of a plan."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("uniform_", "normal_"):  # those of tensors and of nn.init
            return [*args, *(kwargs or {}).values()][0].detach().zero_()
        return func(*args, **(kwargs or {}))


class ShardedEmbeddings:
    """The sharded collections of one plan on this rank.

    Attributes:
        sharded: what `DistributedModelParallel` returned.
        dense_optimizers: the optimizer of replicated tables, if there are any.

    Args:
        plan: the plan.
        params: learning rate of the tables and kind of device. The optimizer is that of the plan's task.
        device: the device of this rank.
        now: the clock of this rank, by default that of its device.
    """

    def __init__(self, plan: Plan, params: TurnParams, device: torch.device, now: Clock | None = None) -> None:
        optimizer = OPTIMIZER_CLASSES[plan.task.optimizer]
        kind: Any = str(device) if now else params.compute_device  # virtual ranks share a device
        with _ZeroWeights():
            unsharded = unsharded_embeddings(plan.task.tables)
            apply_optimizer_in_backward(optimizer, unsharded.parameters(), {"lr": params.learning_rate})
            sharding_plan = plan.to_torchrec(unsharded, plan.task.local_world_size, kind)
            sharded = DistributedModelParallel(
                unsharded,
                device=device,
                plan=sharding_plan,
                sharders=torchrec_sharders(plan.task.comm_precision, params.compute_device),
                init_data_parallel=False,
            )
        self.sharded = sharded
        self.collections = [sharded.module[name] for name in unsharded]
        self._now = now or device_clock(device)
        replicas = [
            weight
            for path, collection in zip(unsharded, self.collections, strict=True)
            for weight in _replicas(collection, sharding_plan.plan[path])
        ]
        self.dense_optimizers = [optimizer(replicas, lr=params.learning_rate)] if replicas else []

    def step(self, ids: RankIds) -> list[Span]:
        """Wait for all ranks, run one step, and return the spans of the whole step and of its parts."""
        keyed = ids.keyed()
        dist.barrier()
        watch = Stopwatch(self._now)
        contexts = [collection.create_context() for collection in self.collections]
        sent = [c.input_dist(*of) for c, *of in zip(self.collections, contexts, keyed, strict=True)]
        received = [sizes.wait().wait() for sizes in sent]
        watch.mark("input_dist_ms")
        found = [c.compute(*of) for c, *of in zip(self.collections, contexts, received, strict=True)]
        watch.mark("lookup_forward_ms")
        lookups = LookupBackward(watch, [tensor for of_module in found for tensor in of_module])
        outputs = [c.output_dist(*of) for c, *of in zip(self.collections, contexts, found, strict=True)]
        returned = [rows for output in outputs for rows in _rows(output.wait())]
        watch.mark("output_dist_ms")
        torch.autograd.backward(returned, [torch.ones_like(rows) for rows in returned])
        for optimizer in self.dense_optimizers:
            start = watch.now()
            optimizer.step()
            optimizer.zero_grad()
            watch.spans.append(("dense_optimizer_ms", start, watch.now()))
        watch.mark("backward_ms")
        return [*watch.spans, *lookups.spans, watch.total]


def _rows(output: KeyedTensor | dict[str, JaggedTensor]) -> list[torch.Tensor]:
    """The pooled rows (B, D) of a module, or the rows of every feature of a module of sequence tables."""
    return [output.values()] if isinstance(output, KeyedTensor) else [rows.values() for rows in output.values()]


class LookupBackward:
    """Measures how long the backward of the lookups takes, by hooks on the nodes of their autograd graphs.

    The time counts from the moment when the gradient of a lookup's output is known to the end of the last node of that
    lookup. On CPUs autograd runs one node at a time. On GPUs the clock waits for the device at every hook.
    """

    def __init__(self, watch: Stopwatch, outputs: Sequence[torch.Tensor]) -> None:
        self._watch = watch
        self._start, self._end = [0.0] * len(outputs), [0.0] * len(outputs)
        for at, output in enumerate(outputs):
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(lambda *_, at=at: self._begin(at))
                for node in _nodes_below(output.grad_fn):
                    node.register_hook(lambda *_, at=at: self._finish(at))

    def _begin(self, at: int) -> None:
        self._start[at] = self._watch.now()

    def _finish(self, at: int) -> None:
        self._end[at] = self._watch.now()

    @property
    def spans(self) -> list[Span]:
        """A span of the part `lookup_backward_ms` for every lookup."""
        return [("lookup_backward_ms", *of) for of in zip(self._start, self._end, strict=True)]


def _nodes_below(node: Any) -> Iterator[Any]:
    """`node` and all nodes that its gradient flows to, without the leaves that accumulate gradients."""
    found, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or node in found or node.name().endswith("AccumulateGrad"):
            continue
        found.add(node)
        yield node
        waiting += [below for below, _ in node.next_functions]


def _replicas(collection: nn.Module, plan: Mapping[str, Any]) -> Iterator[nn.Parameter]:
    """The weights of a collection's data-parallel tables, named `embedding_bags.<table>.weight` or `embeddings...`."""
    for name, weight in collection.named_parameters():
        if plan[name.split(".", 1)[1].removesuffix(".weight")].sharding_type == "data_parallel":
            yield weight
