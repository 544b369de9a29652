"""What a campaign measures and in which order: stretches, their keys, and what the keys depend on."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

Sample = TypeVar("Sample", ComputeSample, CommSample)
AnySample = ComputeSample | CommSample
AnyParams = ComputeMeasureParams | CommMeasureParams

#: Raised whenever the meaning of a raw shard or of a timing changes, so that old shards are not mixed with new.
MEASUREMENT_VERSION = 5
_DIGEST_LENGTH = 12
_NO_PART_OF_A_CAMPAIGN = {"engine", "cluster_address", "torchrun_endpoint", "visit_statistic"}


@dataclass(frozen=True)
class Stretch:
    """Samples measured one after the other and saved together.

    Attributes:
        key: name of the shard that holds the result, `<campaign>/<visit>/<chunk>`.
        indices: which samples, in the order in which they are measured.
        group: which team measures it: the world size of a collective, 0 for compute.
        replica: whether this is the second, independent measurement of the noise floor.
    """

    key: str
    indices: tuple[int, ...]
    group: int
    replica: bool


def digest(*parts: object) -> str:
    """A short name for what `parts` contain."""
    return hashlib.sha256("\x1f".join(map(repr, parts)).encode()).hexdigest()[:_DIGEST_LENGTH]


def campaign_hash(params: AnyParams, seed: int, fingerprint: dict[str, object]) -> str:
    """Name of a campaign: equal only if every measurement in it would be made in the same way.

    Args:
        params: every parameter counts but those that say where workers are, as all hosts of a cluster are alike, and
            how visits become a cost, which happens afterwards; how many ranks share a host counts.
        seed: of the drawn ids and of the order of visits.
        fingerprint: device, host and library versions (`hardware.fingerprint`).
    """
    parts = params.model_dump(exclude=_NO_PART_OF_A_CAMPAIGN)
    if parts.get("local_world_size") is None:  # one host: the name from before there were several
        parts.pop("local_world_size", None)
    parameters = json.dumps(parts, sort_keys=True)
    return digest(MEASUREMENT_VERSION, parameters, seed, sorted(fingerprint.items()))


def planned_stretches(samples: Sequence[AnySample], params: AnyParams, seed: int, campaign: str) -> list[Stretch]:
    """Every stretch of the regular visits, in the order in which they are measured.

    Samples are cut into chunks in the given order, so that a longer list of samples extends the campaign: full
    chunks keep their keys. Every round visits the chunks in a new order, and every chunk its samples.
    """
    chunks = list(_chunks(samples, params, seed))
    stretches = []
    for visit in range(params.visits):
        for chunk in np.random.default_rng([seed, visit]).permutation(len(chunks)):
            name, indices, group, replica = chunks[chunk]
            order = np.random.default_rng([seed, visit, int(chunk)]).permutation(len(indices))
            shuffled = tuple(indices[position] for position in order)
            stretches.append(Stretch(f"{campaign}/visit-{visit:03d}/{name}", shuffled, group, replica))
    return stretches


def _chunks(
    samples: Sequence[AnySample], params: AnyParams, seed: int
) -> Iterator[tuple[str, tuple[int, ...], int, bool]]:
    """Yield (name, sample indices, group, replica) of every chunk."""
    groups = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[group_of(sample)].append(index)
    for group, members in sorted(groups.items()):
        for number, start in enumerate(range(0, len(members), params.chunk_samples)):
            indices = tuple(members[start : start + params.chunk_samples])
            name = f"w{group}-{number:04d}-{digest(*(samples[index] for index in indices))}"
            yield name, indices, group, False
            replicas = _replicas(samples, indices, params.noise_floor_share, seed)
            if replicas:
                yield f"{name}-replica", replicas, group, True


def group_of(sample: AnySample) -> int:
    """Which team measures a sample."""
    return sample.world_size if isinstance(sample, CommSample) else 0


def _replicas(samples: Sequence[AnySample], indices: Sequence[int], share: float, seed: int) -> tuple[int, ...]:
    """The samples of a chunk that are measured twice: a fixed random choice that does not depend on other chunks."""
    count = int(np.ceil(share * len(indices)))
    ranked = sorted(indices, key=lambda index: digest(seed, "replica", samples[index].sample_id))
    return tuple(ranked[:count])
