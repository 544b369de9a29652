"""The chunks that a campaign measures, their order and their keys.

A sample is what one measurement runs: the shards of one rank, or collectives (`tables.samples`). A campaign measures
many samples in rounds; a visit is the measurement of one sample in one round. A chunk is a list of samples that are
visited one after another. Some samples are measured a second time; how far both results differ is the noise floor.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from neuroshard_pipeline.measurement.params import AnyParams, CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.tables.samples import CollectiveSample, ComputeSample, ReductionSample

AnySample = ComputeSample | CollectiveSample

_DIGEST_LENGTH = 12


@dataclass(frozen=True)
class Chunk:
    """Samples that one team of worker processes measures one after another, and that are saved as one record.

    The key is `<campaign>/<visit>/<content>`, with the number of the round of visits, from 0. `indices` are the
    positions of the samples among all samples, in order. The group is the world size of the collectives, 0 for compute
    samples. A replica belongs to the second, independent measurement for the noise floor.
    """

    key: str
    visit: int
    indices: tuple[int, ...]
    group: int
    replica: bool


class Visit(NamedTuple):
    """One visit of one sample: number of the round of visits, from 0, and digest of the sample's content.

    A replica belongs to the second measurement, for the noise floor.
    """

    number: int
    digest: str
    replica: bool


class _Part(NamedTuple):
    """Samples that the same team measures for the same purpose; fields as in `Chunk`."""

    group: int
    replica: bool
    indices: Sequence[int]


def digest(*parts: object) -> str:
    """A short hash of the content of `parts`."""
    return hashlib.sha256("\x1f".join(map(repr, parts)).encode()).hexdigest()[:_DIGEST_LENGTH]


def planned_chunks(
    samples: Sequence[AnySample], params: AnyParams, seed: int, campaign: str, measured: Collection[Visit] = frozenset()
) -> list[Chunk]:
    """All chunks that remain to be measured, in order.

    With `params.shuffle` = `samples`, every round of visits shuffles all samples, so that a sample has other neighbours
    at every visit. This matters because the cheapest samples cost 5 % less when they are measured among similar samples
    than among all samples. With `chunks`, consecutive samples stay together and the chunks are shuffled. The remainder
    of a killed campaign, and samples and visits that are added to a campaign, are divided into additional chunks.

    Args:
        samples: all samples of the campaign.
        params: parameters of the campaign.
        seed: determines the order of visits, and the samples that are measured a second time for the noise floor.
        campaign: name of the campaign (`identity.name_of`), the start of every key.
        measured: visits that are already measured.
    """
    known = [digest(sample) for sample in samples]
    seen: dict[tuple[str, bool], set[int]] = defaultdict(set)
    for number, content, replica in measured:
        seen[content, replica].add(number)
    parts = _parts(samples, params.noise_floor_share, seed)
    due = [
        {index: missing_rounds(samples[index], params, seen[known[index], part.replica]) for index in part.indices}
        for part in parts
    ]
    chunks: list[Chunk] = []
    for visit in range(params.visits):
        place = [digest(seed, visit, content) for content in known]
        of_visit: list[Chunk] = []
        for (group, replica, members), rounds in zip(parts, due, strict=True):
            missing = [index for index in members if visit in rounds[index]]
            if params.shuffle == "samples":
                missing.sort(key=place.__getitem__)
            for indices in _cut(missing, params.chunk_samples):
                name = digest(*sorted(known[index] for index in indices))
                key = f"{campaign}/visit-{visit:03d}/w{group}-{name}{'-replica' * replica}"
                of_visit.append(Chunk(key, visit, tuple(sorted(indices, key=place.__getitem__)), group, replica))
        order = np.random.default_rng([seed, visit]).permutation(len(of_visit))
        chunks += [of_visit[number] for number in order]
    return chunks


def rounds_of(sample: AnySample, params: AnyParams) -> frozenset[int]:
    """Numbers of the rounds that visit a sample: all rounds, or fewer rounds at even distances.

    Compute samples with many lookup bytes (`params.thorough_lookup_bytes`) and reductions (`params.reduction_visits`)
    get fewer visits. With a time budget, these are in the half of the rounds that always starts, as far as possible.
    """
    visits = count = params.visits
    if isinstance(sample, ReductionSample) and isinstance(params, CommMeasureParams):
        count = min(params.reduction_visits, visits)
    if isinstance(sample, ComputeSample) and isinstance(params, ComputeMeasureParams) and params.thorough_lookup_bytes:
        wanted = round(visits * params.thorough_lookup_bytes / sample.lookup_bytes)
        count = min(max(wanted, params.least_visits), visits)
    last = visits - 1 if params.time_budget_s is None else max((visits - 1) // 2, count - 1)
    return frozenset(round(number * last / max(count - 1, 1)) for number in range(count))


def missing_rounds(sample: AnySample, params: AnyParams, measured: Set[int]) -> Set[int]:
    """Numbers of the rounds that still have to visit a sample.

    A visit of an earlier run counts even if its round is not one of `rounds_of`, because an earlier run may
    have had another number of visits. Of the rounds that have not visited the sample, the last ones are returned.
    """
    rounds = rounds_of(sample, params)
    number = max(len(rounds) - len(measured), 0)
    return set(sorted(rounds - measured, reverse=True)[:number])


def measured_visits(records: Mapping[str, pd.DataFrame]) -> set[Visit]:
    """The visits in `records` that need no other attempt: no rank failed, or every failure is permanent."""
    found = set()
    for key, frame in records.items():
        number = int(key.split("/")[1].removeprefix("visit-"))
        again = set(frame.loc[frame["error"].notna() & ~frame["permanent"].astype(bool), "digest"])
        contents = zip(frame["digest"].tolist(), frame["replica"].tolist(), strict=True)
        found |= {Visit(number, content, replica) for content, replica in contents if content not in again}
    return found


def failed_samples(records: Mapping[str, pd.DataFrame]) -> set[str]:
    """Digests of the samples that failed in at least one visit."""
    return {content for frame in records.values() for content in frame.loc[frame["error"].notna(), "digest"]}


def _parts(samples: Sequence[AnySample], noise_floor_share: float, seed: int) -> list[_Part]:
    """One part per group with all its samples, then one part per group with the samples that are measured again."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[0 if isinstance(sample, ComputeSample) else sample.world_size].append(index)
    first = [_Part(group, False, indices) for group, indices in sorted(groups.items())]
    second = []
    for group, _, indices in first:  # a random choice that hardly changes when samples are added
        ranked = sorted(indices, key=lambda index: digest(seed, "replica", samples[index].sample_id))
        second.append(_Part(group, True, ranked[: int(np.ceil(noise_floor_share * len(indices)))]))
    return first + second


def _cut(indices: Sequence[int], longest: int) -> list[Sequence[int]]:
    """Cut `indices` into parts of about equal length, at most `longest`. A short part wastes time on its start-up."""
    parts = -(-len(indices) // longest)
    bounds = [part * len(indices) // max(parts, 1) for part in range(parts + 1)]
    return [indices[start:end] for start, end in pairwise(bounds)]
