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
    bags = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
    places = torch.arange(len(bags), device=device) - features.offsets()[bags]
    if seed is not None:
        generator = torch.Generator(device).manual_seed(seed)
        starts = (torch.rand(len(lengths), generator=generator, device=device) * lengths).long()
        places = places - starts[bags]
        places += lengths[bags] * (places < 0)
    kept, values = places < limits[bags], features.values()
    weights, varies = features.weights_or_none(), features.variable_stride_per_key()
    return KeyedJaggedTensor(
        features.keys(),
        values[kept],
        None if weights is None else weights[kept],
        lengths=torch.minimum(lengths, limits.to(lengths.dtype)),
        stride_per_key_per_rank=features.stride_per_key_per_rank() if varies else None,
        inverse_indices=features.inverse_indices_or_none(),
    )
