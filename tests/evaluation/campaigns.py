"""Campaigns for tests: a campaign measures many samples; these compute the costs instead of measuring them."""

from collections.abc import Callable, Iterator, Sequence

import pandas as pd


class ComputedCampaign:
    """Has the methods of `ComputeCampaign` and `CommCampaign` that give costs or hosts; one record holds all costs."""

    def __init__(self, costs_of: Callable[[Sequence], pd.DataFrame], measured: list[list[str]]) -> None:
        self._costs_of = costs_of
        self._measured = measured

    def run(self, samples, done) -> Iterator[tuple[str, pd.DataFrame]]:
        if not done:
            self._measured.append([sample.sample_id for sample in samples])
            yield "record", self._costs_of(samples)

    def costs(self, records, samples) -> pd.DataFrame:
        (costs,) = records.values()
        return costs[costs["sample_id"].isin([sample.sample_id for sample in samples])]

    def hosts_of(self, num_ranks) -> int:  # noqa: ARG002
        return 1

    def reduction_costs(self, records, samples) -> pd.DataFrame:
        costs = self.costs(records, samples)
        return (
            costs.groupby("sample_id", sort=False)
            .agg(cost_ms=("forward_ms", "max"), error=("error", "first"))
            .reset_index()
        )

    def measure(self, samples) -> pd.DataFrame:
        return self.costs(dict(self.run(samples, {})), samples)


class ComputedCampaigns:
    """Has the attributes of `evaluation.campaigns.Campaigns`.

    Attributes:
        measured: ids of the samples of every campaign that has run.
    """

    def __init__(self, compute: Callable[[Sequence], pd.DataFrame], comm: Callable[[Sequence], pd.DataFrame]) -> None:
        self.measured: list[list[str]] = []
        self.compute = ComputedCampaign(compute, self.measured)
        self.comm = ComputedCampaign(comm, self.measured)
