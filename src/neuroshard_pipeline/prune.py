"""`kedro prune`: deletes stored measurements that the campaigns of an environment do not use.

A campaign measures many samples with the same parameters on the same machine, and stores the timings as records.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from kedro.framework.session import KedroSession
from kedro.io import CatalogProtocol

from neuroshard_pipeline.measurement import (
    CommCampaign,
    CommMeasureParams,
    CommOverrides,
    ComputeCampaign,
    ComputeMeasureParams,
    ComputeOverrides,
)
from neuroshard_pipeline.measurement.identity import OtherCampaign, other_campaigns
from neuroshard_pipeline.run_lock import locked

_PLAN_STAGES = ("search", "benchmark")


class UnusedRecords(NamedTuple):
    """The records of one stored campaign, which no campaign of an environment uses.

    Attributes:
        folder: the folder of the records.
        campaign: the campaign that stored them, and why they are not used.
    """

    folder: Path
    campaign: OtherCampaign

    def __str__(self) -> str:
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return f"{self.folder}: {len(self.campaign.keys)} records, {size / 1e6:.1f} MB: {self.campaign.difference}"


def unused_records(catalog: CatalogProtocol) -> Iterator[UnusedRecords]:
    """Find the stored records of all campaigns other than those that the catalog's parameters describe."""
    for name, campaign in _campaigns(catalog.load).items():
        dataset: Any = catalog.get(name)
        for other in other_campaigns(dataset.load(), campaign.identity()):
            yield UnusedRecords(Path(dataset._path) / other.name, other)


@click.command()
@click.option("--yes", is_flag=True, help="Delete without asking.")
def prune(env: str | None, params: dict[str, Any], yes: bool) -> None:
    """Delete stored measurements that no campaign of the environment uses.

    The command first lists them, and says what differs from a run of today: parameters, seed, machine or libraries.
    Measurements of another environment in the same data folder count as unused, unless they differ only in parameters
    that change no timing, such as `visits`.
    """
    with KedroSession.create(env=env, runtime_params=params) as session:
        catalog = session.load_context().catalog  # type: ignore[attr-defined]
        with locked(Path(catalog.load("data_root"))):
            found = list(unused_records(catalog))
            if not found:
                click.echo("There are no unused measurements.")
                return
            click.echo("\n".join(map(str, found)))
            if not yes:
                click.confirm("Delete them?", abort=True)
            for unused in found:
                shutil.rmtree(unused.folder)
            click.echo(f"Deleted the records of {len(found)} campaigns.")


def _campaigns(load: Callable[[str], Any]) -> dict[str, ComputeCampaign | CommCampaign]:
    """Name of every dataset of records → campaign that uses it; `load` returns the value of a parameter."""
    seed = load("params:measure.seed")
    compute = ComputeMeasureParams.model_validate(load("params:measure.compute"))
    comm = CommMeasureParams.model_validate(load("params:measure.comm"))
    campaigns: dict[str, ComputeCampaign | CommCampaign] = {
        "measure.compute_shards": ComputeCampaign(compute, seed),
        "measure.comm_shards": CommCampaign(comm, seed),
    }
    for stage in _PLAN_STAGES:
        lookups = compute.overridden(ComputeOverrides.model_validate(load(f"params:{stage}.compute")))
        collectives = comm.overridden(CommOverrides.model_validate(load(f"params:{stage}.comm")))
        campaigns[f"{stage}.compute_records"] = ComputeCampaign(lookups, seed)
        for direction in ("backward", "forward"):
            campaigns[f"{stage}.{direction}_records"] = CommCampaign(collectives, seed)
    return campaigns
