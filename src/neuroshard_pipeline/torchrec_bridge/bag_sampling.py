"""Sampling of long bags: a table looks up at most k ids of a bag, as ES-SpMM samples at most k edges of a node.

Source: Lin, Luo and Ceze, "Accelerating SpMM Kernel with Cache-First Edge Sampling for Graph Neural Networks", 2021
(arXiv:2104.10716). Sums of sampled bags are smaller than those of whole bags; means are not biased by random ids.
"""

from collections.abc import Mapping

import torch

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec import KeyedJaggedTensor  # noqa: E402


def sampled_bags(features: KeyedJaggedTensor, most: Mapping[str, int], seed: int | None = None) -> KeyedJaggedTensor:
    """The batch with at most `most[key]` ids in every bag of a feature; ids that stay keep their order.

    With a seed, the ids that stay follow a random id of the bag, the first id after the last, so that each is equally
    likely to stay and nothing is sorted. Gradients reach the weights of the ids that stay; others get gradients of 0.

    Args:
        features: ids of a batch, perhaps weighted.
        most: limits by feature; other features keep all ids.
        seed: seed of the choice of ids, another one for every batch; None for the first ids of every bag.

    Raises:
        TaskError: the batch has no such feature, or a limit is below 1.
    """
    for key, limit in most.items():
        if key not in features.keys() or limit < 1:  # noqa: SIM118
            raise TaskError(f"at most {limit} ids of feature {key!r}: limits are at least 1, for {features.keys()}")
    lengths, device = features.lengths(), features.lengths().device
    longest = int(lengths.max()) if len(lengths) else 0
    of_keys = torch.tensor([most.get(key, longest) for key in features.keys()], device=device)  # noqa: SIM118
    limits = of_keys.repeat_interleave(torch.tensor(features.stride_per_key(), device=device))
    kept = torch.minimum(lengths, limits.to(lengths.dtype))
    first, start = kept, torch.zeros_like(lengths)  # a bag keeps its first ids, and further ones from `start` on
    if seed is not None:
        generator = torch.Generator(device).manual_seed(seed)
        start = (torch.rand(len(lengths), generator=generator, device=device) * lengths).to(lengths.dtype)
        first = (start + kept - lengths).clamp(min=0)
    num_kept, skipped = int(kept.sum()), features.offsets()[:-1] - (kept.cumsum(0) - kept)
    skips = torch.stack([skipped, skipped + start - first], dim=1).flatten()
    pieces = torch.stack([first, kept - first], dim=1).flatten()
    places = torch.arange(num_kept, device=device) + skips.repeat_interleave(pieces, output_size=num_kept)
    weights, varies = features.weights_or_none(), features.variable_stride_per_key()
    return KeyedJaggedTensor(
        features.keys(),
        features.values()[places],
        None if weights is None else weights[places],
        lengths=kept,
        stride_per_key_per_rank=features.stride_per_key_per_rank() if varies else None,
        inverse_indices=features.inverse_indices_or_none(),
    )
