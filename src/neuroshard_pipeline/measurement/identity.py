"""The identity of a campaign consists of everything that changes its timings.

A campaign times many samples, each in several visits, and stores the timings as records. Campaigns with the same
identity share the records in a folder, whichever environment or command started them. More samples or more visits
extend a campaign.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from neuroshard_pipeline.measurement.costs import Records, loaded
from neuroshard_pipeline.measurement.params import AnyParams

#: Field → value as JSON. The fields are `IDENTIFYING`, the seed, the version below and the machine's fingerprint.
Identity = Mapping[str, str]

#: Increase it whenever the meaning of a record or of a timing changes, so that old records are not mixed with new ones.
MEASUREMENT_VERSION = 8
#: Parameters that change a timing, or decide which samples fail, each with the reason.
IDENTIFYING = {
    "backend",  # determines the kernels or collectives
    "threads",  # share the work of a kernel
    "workers",  # share the memory bus; two of them make the noise 2 to 5 times as large
    "warmup_iterations",  # determine what is in the caches before the first timed iteration
    "iterations",  # the minimum of more iterations is lower
    "iteration_statistic",  # reduces the iterations to the timing that is stored
    "shuffle",  # determines which samples follow each other; a cheap sample costs 5 % less among other cheap samples
    "cache_treatment",  # determines whether rows are in the caches
    "arena_bytes",  # in a smaller arena, more rows stay in the caches
    "local_world_size",  # determines which ranks share a host
    "start_margin_ms",  # a rank that is not waiting yet at the common start has a higher cost
    "buffer_bytes",  # changes no timing, but a sample that is too large for it has a stored failure
}
#: Parameters that do not change the timing of a visit, each with the reason.
NOT_IDENTIFYING = {
    "visits",  # more visits extend a campaign
    "thorough_lookup_bytes",  # determines the number of visits of a sample; see `visits`
    "least_visits",  # see `visits`
    "reduction_visits",  # see `visits`
    "time_budget_s",  # limits the number of rounds; see `visits`
    "noise_floor_share",  # determines how many samples are measured a second time; see `visits`
    "visit_statistic",  # reduces the visits to a cost after they were stored
    "reduction_statistic",  # see `visit_statistic`
    "chunk_samples",  # untimed visits or collectives come first, so that no timing includes the start of a chunk
    "ids_folder",  # determines where ids are kept; they depend on the tables, the batch size and the seed only
    "timeout_s",  # ends a measurement, but does not change one
    "engine",  # determines where the workers run; their hosts must have the same fingerprint
    "cluster_address",  # see `engine`
    "torchrun_endpoint",  # see `engine`
}
_NAME_LENGTH = 12


def identity_of(params: AnyParams, seed: int, fingerprint: Mapping[str, object]) -> Identity:
    """The identity of a campaign: its parameters in `IDENTIFYING`, the seed of ids and visits, the machine."""
    fields = {"measurement_version": MEASUREMENT_VERSION, "seed": seed, **params.model_dump(include=IDENTIFYING)}
    return {name: json.dumps(value, sort_keys=True) for name, value in sorted({**fields, **fingerprint}.items())}


def name_of(identity: Identity) -> str:
    """The name of a campaign, a hash of its identity; the keys of its records start with it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:_NAME_LENGTH]


class OtherCampaign(NamedTuple):
    """Name and keys of stored records that a campaign does not use, and the fields in which the identities differ."""

    name: str
    keys: tuple[str, ...]
    difference: str


def other_campaigns(records: Records, identity: Identity) -> list[OtherCampaign]:
    """The campaigns in `records` that have another identity; one record of each is loaded."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key in sorted(records):
        keys[key.partition("/")[0]].append(key)
    keys.pop(name_of(identity), None)
    return [OtherCampaign(name, tuple(found), _difference(records, found[0], identity)) for name, found in keys.items()]


def _difference(records: Records, key: str, identity: Identity) -> str:
    """The fields in which the record's identity differs, or why they are unknown."""
    record = loaded(records[key])
    if "identity" not in record:
        return "an older version of this project measured them and did not store its parameters"
    there: Identity = json.loads(record["identity"].iloc[0])
    return ", ".join(
        f"{name} was {there.get(name, 'unknown')} and is {identity.get(name, 'unknown')}"
        for name in sorted({*there, *identity})
        if there.get(name) != identity.get(name)
    )
