"""Tables with tiers under TorchRec's `TrainPipelineSparseDist`, which exchanges the ids of the next batch early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx
from torchrec import JaggedTensor, KeyedJaggedTensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.streamable import Pipelineable
from torchrec_bridge.tiered_sequences import (
    LEARNING_RATE,
    SAMPLES_PER_RANK,
    STEPS,
    Case,
    TieredModel,
    drawn_ids,
    summed,
    tiered_model,
)

from neuroshard_pipeline.torchrec_bridge.tiered import rank_groups


@dataclass
class Batch(Pipelineable):
    """The ids of one step; all of them stay on the CPU."""

    ids: KeyedJaggedTensor
    pooled_ids: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:  # noqa: ARG002
        return self

    def record_stream(self, stream: torch.Stream) -> None:
        """Do nothing, because there are no streams."""


class PipelinedModel(TieredModel):
    """The model in a form that TorchRec can trace."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [_features(self.sequence(batch.ids), self.names), self.pooled(batch.pooled_ids)["p"]]
        output = self.over(torch.cat(parts, dim=1)).squeeze(-1)
        return (output - 1).square().mean(), output.detach().mean()


@torch.fx.wrap
def _features(rows: dict[str, JaggedTensor], names: Sequence[str]) -> torch.Tensor:
    return torch.cat([summed(rows[name]) for name in names], dim=1)


def pipelined_outputs(rank: int, _world_size: int, case: Case) -> tuple[list[float], list[float]]:
    """Mean outputs per step, without and with the pipeline."""
    groups = rank_groups(case.ranks_per_host)
    return _outputs(rank, case, groups, is_pipelined=False), _outputs(rank, case, groups, is_pipelined=True)


def _outputs(rank: int, case: Case, groups, is_pipelined: bool) -> list[float]:
    torch.manual_seed(0)
    model = tiered_model(PipelinedModel(), case, groups)
    dense = [weight for _, weight in in_backward_optimizer_filter(model.named_parameters())]
    optimizer = torch.optim.SGD(dense, lr=LEARNING_RATE)
    part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    samples = SAMPLES_PER_RANK * groups.world.size()
    batches = [Batch(*drawn_ids(step, samples, part)) for step in range(STEPS)]
    if is_pipelined:
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        rest = iter(batches)
        outputs = [pipeline.progress(rest).item() for _ in batches]
        assert "TieredEmbeddingCollection" in {type(module).__name__ for module in pipeline._pipelined_modules}
        return outputs
    outputs = []
    for batch in batches:
        optimizer.zero_grad()
        loss, output = model(batch)
        loss.backward()
        optimizer.step()
        outputs.append(output.item())
    return outputs
