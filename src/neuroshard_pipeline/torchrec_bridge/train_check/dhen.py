"""DHEN, a dense network of layers that are ensembles of interaction modules [Zhang et al. 2022, arXiv:2203.11014].

Every feature becomes an embedding of the same width d: `E_t = P_t p_t` for the pooled rows p_t (B, D_t) of table t, and
`E_0 = P_0 MLP(dense features)`. With X_0 = [E_0, E_1, ..., E_T], a layer computes

    X_{n+1} = LayerNorm(Concat_i Interaction_i(X_n) + W_n X_n)

where X_n (B, m_n, d) are m_n embeddings. Each of the k interactions returns l embeddings, so that m_{n+1} = k l, and
W_n (m_{n+1}, m_n) is the shortcut. An MLP maps the last X to the logit. The paper also has sums in the place of Concat,
and no W_n where m_n = m_{n+1}.

Shapes: B samples, T tables, m embeddings, d their width, l outputs of an interaction.
"""

from collections.abc import Sequence

import torch
from torch import nn

from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES
from neuroshard_pipeline.torchrec_bridge.train_check.params import DhenParams, TrainingParams
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.models.dlrm import DenseArch, OverArch  # noqa: E402
from torchrec.modules.crossnet import LowRankCrossNet  # noqa: E402


class Linear(nn.Module):
    """`Y = W X`: mixes embeddings, (B, m, d) → (B, l, d)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weights = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Linear combinations of the embeddings."""
        return self.weights(x.transpose(1, 2)).transpose(1, 2)


class DotProduct(nn.Module):
    """`Y = W [x_i · x_j for i < j]`: dot products of all pairs of embeddings, (B, m, d) → (B, l, d), W (l d, m(m-1)/2).

    Like the interaction of DLRM, of order 2 in its inputs.
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.shape = outputs, width
        self.weights = nn.Linear(inputs * (inputs - 1) // 2, outputs * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings made of the dot products."""
        first, second = torch.triu_indices(x.shape[1], x.shape[1], 1, device=x.device)
        return self.weights((x @ x.transpose(1, 2))[:, first, second]).unflatten(1, self.shape)


class SelfAttention(nn.Module):
    """`Y = W TransformerEncoderLayer(X)`: every embedding attends to all others, (B, m, d) → (B, l, d)."""

    def __init__(self, inputs: int, width: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.mix = Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Combinations of the encoded embeddings."""
        return self.mix(self.encoder(x))


class CrossNetwork(nn.Module):
    """`Y = W Cross(X)`, (B, m, d) → (B, l, d); a cross layer is `z_{k+1} = z_0 * (U V z_k + b) + z_k`, z_0 (B, m d).

    The low-rank cross network of DCN-v2 [Wang et al. 2021, arXiv:2008.13535].
    """

    def __init__(self, inputs: int, width: int, outputs: int, params: TrainingParams) -> None:
        super().__init__()
        self.cross = LowRankCrossNet(inputs * width, params.cross_layers, params.cross_rank)
        self.mix = Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Combinations of the crossed embeddings."""
        return self.mix(self.cross(x.flatten(1)).unflatten(1, x.shape[1:]))


class Layer(nn.Module):
    """One layer (module docstring): an ensemble of the four interactions, (B, m, d) → (B, 4 l, d)."""

    def __init__(self, inputs: int, params: TrainingParams) -> None:
        super().__init__()
        width, outputs = params.dhen.width, params.dhen.outputs
        self.interactions = nn.ModuleList(
            [
                DotProduct(inputs, width, outputs),
                SelfAttention(inputs, width, outputs, params.dhen.heads),
                CrossNetwork(inputs, width, outputs, params),
                Linear(inputs, outputs),
            ]
        )
        self.shortcut = Linear(inputs, num_outputs(params.dhen))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The embeddings of the next layer."""
        found = torch.cat([interaction(x) for interaction in self.interactions], dim=1)
        return self.norm(found + self.shortcut(x))


def num_outputs(params: DhenParams) -> int:
    """Embeddings that a layer returns."""
    return 4 * params.outputs


class Features(nn.Module):
    """The embeddings X_0 (B, T + 1, d) of dense features (B, 13) and pooled rows (B, sum of the widths)."""

    def __init__(self, widths: Sequence[int], params: TrainingParams) -> None:
        super().__init__()
        self.widths = list(widths)
        self.dense_arch = DenseArch(DENSE_FEATURES, list(params.dense_layers))
        sources = [params.dense_layers[-1], *widths]
        self.projections = nn.ModuleList([nn.Linear(each, params.dhen.width, bias=False) for each in sources])

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """One embedding per feature."""
        sources = self.dense_arch(dense), *pooled.split(self.widths, dim=1)
        return torch.stack([project(each) for project, each in zip(self.projections, sources, strict=True)], dim=1)


class Dhen(nn.Module):
    """Logits (B,) of dense features (B, 13) and the pooled rows (B, sum of the widths) of all tables, side by side.

    `layers` may each be sharded on its own.
    """

    def __init__(self, widths: Sequence[int], params: TrainingParams) -> None:
        super().__init__()
        sizes = [len(widths) + 1] + [num_outputs(params.dhen)] * params.dhen.layers
        over = OverArch(sizes[-1] * params.dhen.width, [*params.over_layers, 1])
        self.layers = nn.ModuleList([Features(widths, params), *(Layer(size, params) for size in sizes[:-1]), over])

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Logits of the samples."""
        features, *layers, over = self.layers
        x = features(dense, pooled)
        for layer in layers:
            x = layer(x)
        return over(x.flatten(1)).squeeze(-1)
