"""Which samples train, which choose the epoch, and which are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.errors import CostModelError

IntArray = NDArray[np.int64]

#: Below this a split has no meaning.
MIN_SAMPLES = 10


@dataclass(frozen=True)
class Split:
    """Indices of samples, disjoint, together all of them."""

    training: IntArray
    validation: IntArray
    test: IntArray


def split_samples(sample_ids: Sequence[str], validation_share: float, test_share: float, seed: int) -> Split:
    """Split by a hash of the sample's id, so that it stays almost where it is when more samples join.

    Raises:
        CostModelError: fewer than `MIN_SAMPLES` samples.
    """
    if len(sample_ids) < MIN_SAMPLES:
        raise CostModelError(
            f"{len(sample_ids)} usable samples are too few to train on, at least {MIN_SAMPLES} are needed; "
            "raise the number of samples in the augment parameters or look at the error column of the costs"
        )
    hashes = [hashlib.sha256(f"{seed}:{sample_id}".encode()).digest() for sample_id in sample_ids]
    order = np.array(sorted(range(len(hashes)), key=hashes.__getitem__), dtype=np.int64)
    held_out = max(1, round(test_share * len(order)))
    choosing = max(1, round(validation_share * len(order)))
    test, validation, training = np.split(order, [held_out, held_out + choosing])
    return Split(np.sort(training), np.sort(validation), np.sort(test))
