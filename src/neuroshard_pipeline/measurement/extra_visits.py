"""Which samples deserve more visits than planned: those of disturbed stretches, and those that scatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.measurement.costs import reduce_rows
from neuroshard_pipeline.measurement.stretches import AnyParams, AnySample, Stretch, digest, group_of

_REGULAR, _AGAIN, _WIDE = "visit", "again", "wide"


def next_extra_stretches(
    rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str, count: int
) -> list[Stretch]:
    """The next extra stretches, at most `count`, none once the budget is used up or nothing needs them.

    First every regular stretch in whose course the reference probe ran `disturbed_slowdown` times slower than its
    best is measured once more, the worst first. Then the samples whose spread exceeds `wide_spread_share` of their
    cost get further visits, the widest among the least visited first. The choice follows from the rows alone, so a
    resumed campaign goes on where it stopped.

    Args:
        rows: everything measured so far (`costs.load_rows`).
        samples: of the campaign.
        params: with the limits and the budget.
        campaign: the hash that keys start with.
        count: how many stretches are wanted.
    """
    kinds = rows["key"].str.split("/").str[1].str.split("-").str[0]
    used_s = rows.loc[(kinds != _REGULAR) & (rows["rank"] == 0), "seconds"].sum()
    if used_s >= params.extra_visit_budget_s:
        return []
    again = _disturbed_stretches(rows[kinds == _REGULAR], set(rows["key"]), samples, params, campaign)
    return again[:count] or _wide_stretches(rows, samples, params, campaign, count)


def _disturbed_stretches(
    regular: pd.DataFrame, known: set[str], samples: Sequence[AnySample], params: AnyParams, campaign: str
) -> list[Stretch]:
    index_of = {digest(sample): index for index, sample in enumerate(samples)}
    group = regular["key"].str.rsplit("/").str[-1].str.split("-").str[0]
    best_ms = regular["probe_ms"].groupby(group).transform("min")
    slowdown = (regular["probe_ms"] / best_ms).groupby(regular["key"]).median()
    stretches = []
    for key in slowdown[slowdown > params.disturbed_slowdown].sort_values(ascending=False).index:
        new_key = key.replace(f"{campaign}/{_REGULAR}-", f"{campaign}/{_AGAIN}-")
        of_key = regular[(regular["key"] == key) & (regular["rank"] == 0)]
        if new_key not in known and of_key["digest"].isin(index_of).all():
            indices = tuple(index_of[content] for content in of_key["digest"])
            stretches.append(Stretch(new_key, indices, group_of(samples[indices[0]]), bool(of_key["replica"].iloc[0])))
    return stretches


def _wide_stretches(
    rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str, count: int
) -> list[Stretch]:
    costs = reduce_rows(rows, samples)
    share = costs["spread_ms"] / (costs["forward_ms"] + costs["backward_ms"])
    by_sample = costs.assign(share=share).groupby("sample_id", sort=False)[["share", "repeats"]].max()
    by_sample["index"] = np.arange(len(samples))
    wide = by_sample[by_sample["share"] > params.wide_spread_share]
    wide = wide.sort_values(["repeats", "share"], ascending=[True, False])
    known = rows.loc[rows["key"].str.contains(f"/{_WIDE}-"), "key"].nunique()
    stretches: list[Stretch] = []
    for group in sorted({group_of(samples[index]) for index in wide["index"]}):
        chosen = [index for index in wide["index"] if group_of(samples[index]) == group]
        for start in range(0, len(chosen), params.chunk_samples):
            indices = tuple(chosen[start : start + params.chunk_samples])
            key = f"{campaign}/{_WIDE}-{known + len(stretches):04d}/w{group}-{digest(*(samples[i] for i in indices))}"
            stretches.append(Stretch(key, indices, group, replica=False))
    return stretches[:count]
