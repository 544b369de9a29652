"""What a campaign measures and in which order: stretches, their keys, and what the keys depend on."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

Sample = TypeVar("Sample", ComputeSample, CommSample)
AnySample = ComputeSample | CommSample
AnyParams = ComputeMeasureParams | CommMeasureParams

#: Raised whenever the meaning of a raw shard or of a timing changes, so that old shards are not mixed with new.
MEASUREMENT_VERSION = 6
_DIGEST_LENGTH = 12
_NO_PART_OF_A_CAMPAIGN = {"engine", "cluster_address", "torchrun_endpoint", "visit_statistic"}


@dataclass(frozen=True)
class Stretch:
    """Samples measured one after the other and saved together.

    Attributes:
        key: name of the shard that holds the result, `<campaign>/<visit>/<what it holds>`.
        indices: which samples, in the order in which they are measured.
        group: which team measures it: the world size of a collective, 0 for compute.
        replica: whether this is the second, independent measurement of the noise floor.
    """

    key: str
    indices: tuple[int, ...]
    group: int
    replica: bool


class Visit(NamedTuple):
    """One regular visit of one sample.

    Attributes:
        number: from 0.
        digest: what the sample contains (`digest`).
        replica: whether it belongs to the second measurement of the noise floor.
    """

    number: int
    digest: str
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


def planned_stretches(
    samples: Sequence[AnySample],
    params: AnyParams,
    seed: int,
    campaign: str,
    measured: Collection[Visit] = frozenset(),
) -> list[Stretch]:
    """Every stretch of the regular visits that is still to be measured, in order.

    A visit goes over all samples in an order of its own, so that a sample stands between others every time (the
    cheapest cost 5 % less among their like than among all), or over stretches of consecutive samples
    (`params.shuffle`). What is left of a killed campaign, and samples that are added to one, are cut into stretches of
    their own.

    Args:
        samples: of the whole campaign.
        params: with the number of visits and the share that is measured twice.
        seed: decides the orders and what is measured twice.
        campaign: the hash that keys start with.
        measured: visits that need no stretch.
    """
    known = [digest(sample) for sample in samples]
    rounds = [rounds_of(sample, params) for sample in samples]
    groups: dict[int, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[group_of(sample)].append(index)
    parts = [(group, False, members) for group, members in sorted(groups.items())]
    parts += [(group, True, _replicas(samples, every, params.noise_floor_share, seed)) for group, _, every in parts]
    stretches = []
    for visit in range(params.visits):
        of_visit = []
        for group, replica, members in parts:
            due = [index for index in members if visit in rounds[index]]
            missing = [index for index in due if Visit(visit, known[index], replica) not in measured]
            place = {index: digest(seed, visit, known[index]) for index in missing}
            if params.shuffle == "samples":
                missing.sort(key=place.__getitem__)
            for indices in _cut(missing, params.chunk_samples):
                name = digest(*sorted(known[index] for index in indices))
                key = f"{campaign}/visit-{visit:03d}/w{group}-{name}{'-replica' * replica}"
                of_visit.append(Stretch(key, tuple(sorted(indices, key=place.__getitem__)), group, replica))
        mixed = np.random.default_rng([seed, visit]).permutation(len(of_visit))
        stretches += [of_visit[number] for number in mixed]
    return stretches


def rounds_of(sample: AnySample, params: AnyParams) -> frozenset[int]:
    """Which rounds of a campaign visit a sample: all, or fewer that lie as far apart as they can.

    Args:
        sample: whose work decides how many (`ComputeMeasureParams.thorough_lookup_bytes`).
        params: of the campaign.
    """
    most = params.visits
    if not isinstance(sample, ComputeSample) or not isinstance(params, ComputeMeasureParams):
        return frozenset(range(most))
    if params.thorough_lookup_bytes is None:
        return frozenset(range(most))
    wanted = round(most * params.thorough_lookup_bytes / sample.lookup_bytes)
    count = min(max(wanted, params.least_visits), most)
    return frozenset(round(number * (most - 1) / max(count - 1, 1)) for number in range(count))


def _cut(indices: Sequence[int], longest: int) -> list[Sequence[int]]:
    """Parts of at most `longest`, about equally long: a short stretch hardly gets going."""
    parts = -(-len(indices) // longest)
    bounds = [part * len(indices) // max(parts, 1) for part in range(parts + 1)]
    return [indices[start:end] for start, end in pairwise(bounds)]


def measured_visits(shards: Mapping[str, pd.DataFrame]) -> set[Visit]:
    """The regular visits that shards hold, by their keys."""
    found = set()
    for key, frame in shards.items():
        kind, _, number = key.split("/")[1].partition("-")
        if kind == "visit":
            replicas = frame["replica"].tolist()
            found |= {Visit(int(number), *of_row) for of_row in zip(frame["digest"].tolist(), replicas, strict=True)}
    return found


def group_of(sample: AnySample) -> int:
    """Which team measures a sample."""
    return sample.world_size if isinstance(sample, CommSample) else 0


def _replicas(samples: Sequence[AnySample], indices: Sequence[int], share: float, seed: int) -> list[int]:
    """The samples of a group that are measured twice: a random choice that more samples hardly change."""
    count = int(np.ceil(share * len(indices)))
    ranked = sorted(indices, key=lambda index: digest(seed, "replica", samples[index].sample_id))
    return ranked[:count]
