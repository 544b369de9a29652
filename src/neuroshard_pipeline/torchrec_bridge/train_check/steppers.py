"""What takes turns on a rank: training steps of every model, plan and dense mode, and both of their parts alone."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check import batches as problem
from neuroshard_pipeline.torchrec_bridge.train_check.model import dense_network, keyed_ids, share_of_rank
from neuroshard_pipeline.torchrec_bridge.train_check.params import DenseMode, ModelName, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.sharding import dense_optimizer, shard_dense, shard_model
from neuroshard_pipeline.torchrec_bridge.truth.embeddings import Clock, Stopwatch, device_clock, embedding_steps
from neuroshard_pipeline.torchrec_bridge.truth.steps import Group, RunStep, Span
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.datasets.utils import Batch  # noqa: E402
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist  # noqa: E402


def training_steps(
    group: Group, params: TrainingParams, device: torch.device, now: Clock | None
) -> list[tuple[dict[str, Any], RunStep]]:
    """What takes turns (`truth.steps.MakeSteps`); embeddings alone have no dense mode, dense networks no sharder."""
    task, clock = group.plans[0].task, now or device_clock(device)
    batches = [rank_batch(task, batch, device) for batch in group.batches]
    alone = {"model": "embeddings", "dense": ""}
    found = [(names | alone, run) for names, run in embedding_steps(group, params, device, now)]
    for model, mode in itertools.product(params.models, params.dense):
        names = {"task_id": task.task_id, "model": model, "dense": mode}
        steps = {"": _dense_alone(task, model, mode, params, device)}
        for plan in group.plans:
            whole = shard_model(plan, model, mode, params, device)
            steps[plan.sharder] = whole, whole.module.dense, dense_optimizer(whole, params)
        found += [(names | {"sharder": key}, Steps(*of, batches, params, clock)) for key, of in steps.items()]
    return found


def rank_batch(task: ShardingTask, batch: problem.Batch, device: torch.device) -> Batch:
    """This rank's part of a global batch."""
    part, names = share_of_rank(task), [table.name for table in task.tables]
    dense, labels = torch.from_numpy(batch.dense[part]), torch.from_numpy(batch.labels[part])
    return Batch(dense, keyed_ids(names, batch.ids, part), labels).to(device)


def _dense_alone(
    task: ShardingTask, name: ModelName, mode: DenseMode, params: TrainingParams, device: torch.device
) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    rows, width = task.batch_size // task.world_size, sum(table.embedding_dim for table in task.tables)
    dense = dense_network(name, task.tables, params).to(device)
    pooled = torch.randn(rows, width, generator=torch.Generator().manual_seed(params.seed)).to(device)
    if mode != "ddp":
        shard_dense(dense, mode, task, device)
    alone: nn.Module = DenseAlone(dense, pooled)
    if mode == "ddp":
        alone = DistributedDataParallel(alone, gradient_as_bucket_view=True, broadcast_buffers=False)
    return alone, dense, torch.optim.SGD(dense.parameters(), lr=params.learning_rate)


class DenseAlone(nn.Module):
    """A dense network, with the same pooled rows in the place of those of the tables in every step."""

    def __init__(self, dense: nn.Module, pooled: torch.Tensor) -> None:
        super().__init__()
        self.dense, self._pooled = dense, pooled

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        """The mean loss, to be trained and without gradients."""
        logits = self.dense(batch.dense_features, self._pooled.detach().requires_grad_())
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(),)


class Steps:
    """Timed steps of a model on this rank, which begin together on all ranks; the batches come in a cycle.

    The model returns the loss, and a tuple that begins with it. A dense network alone has nothing to pipeline.
    """

    def __init__(
        self,
        model: nn.Module,
        dense: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Sequence[Batch],
        params: TrainingParams,
        now: Clock,
    ) -> None:
        self._model, self._optimizer, self._batches, self._now = model, optimizer, itertools.cycle(batches), now
        self._pipeline = None
        if params.trainer == "pipelined" and isinstance(model, DistributedModelParallel):
            self._pipeline = TrainPipelineSparseDist(model, optimizer, batches[0].labels.device)
        dense.register_forward_pre_hook(self._reach_dense)
        dense.register_forward_hook(self._mark("dense_forward_ms"))
        optimizer.register_step_pre_hook(self._mark("embedding_backward_ms"))

    def __call__(self, _: int) -> tuple[dict[str, Any], list[Span]]:
        """Train the next batch; return the loss and the parts of the step."""
        dist.barrier()
        self._watch = Stopwatch(self._now)
        loss = self._train()
        self._watch.mark("optimizer_ms")
        return {"loss": loss.item()}, [*self._watch.spans, self._watch.total]

    def _train(self) -> torch.Tensor:
        if self._pipeline is not None:
            return self._pipeline.progress(self._batches)[0]
        self._optimizer.zero_grad()
        loss, _ = self._model(next(self._batches))
        loss.backward()
        self._optimizer.step()
        return loss

    def _reach_dense(self, _: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._watch.mark("embedding_forward_ms")
        inputs[1].register_hook(self._mark("dense_backward_ms"))

    def _mark(self, part: str) -> Any:
        return lambda *_: self._watch.mark(part)
