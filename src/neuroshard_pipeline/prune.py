"""`kedro prune`: deletes stored measurements that are not used, or that other programs disturbed.

A campaign measures many samples with the same parameters on the same machine, and stores the timings as records.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from kedro.framework.session import KedroSession
from kedro.io import CatalogProtocol

from neuroshard_pipeline.host import BUSY_SHARE
from neuroshard_pipeline.measurement import CommCampaign, CommMeasureParams, ComputeCampaign, ComputeMeasureParams
from neuroshard_pipeline.measurement.costs import busy_keys
from neuroshard_pipeline.measurement.identity import Identity, name_of, other_campaigns
from neuroshard_pipeline.run_lock import locked
from neuroshard_pipeline.torchrec_bridge.truth.judge import identity as judge_identity
from neuroshard_pipeline.torchrec_bridge.truth.params import JudgeParams

_PLAN_STAGES = ("search", "truth", "benchmark")


class StoredRecords(NamedTuple):
    """The files of some records in the folder of one stored campaign, and why they can be deleted."""

    folder: Path
    paths: tuple[Path, ...]
    reason: str

    def __str__(self) -> str:
        size = sum(path.stat().st_size for path in self.paths)
        return f"{self.folder}: {len(self.paths)} records, {size / 1e6:.1f} MB: {self.reason}"


def records_to_delete(catalog: CatalogProtocol, busy: bool) -> Iterator[StoredRecords]:
    """Find stored records that are not needed.

    They belong to campaigns other than those that the catalog's parameters describe or, if `busy`, to these campaigns,
    but were made on a busy machine.
    """
    for name, identity in _campaigns(catalog.load).items():
        dataset: Any = catalog.get(name)
        own = name_of(identity)
        if not busy:
            for other in other_campaigns(dataset.load(), identity):
                yield _stored(dataset, other.name, other.keys, other.difference)
        elif keys := busy_keys(dataset.load(), own):
            reason = f"other programs used more than {BUSY_SHARE:.0%} of this machine's cores"
            yield _stored(dataset, own, keys, reason)


@click.command()
@click.option("--busy", is_flag=True, help="Delete measurements made on a busy machine, not unused ones.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
def prune(env: str | None, params: dict[str, Any], busy: bool, yes: bool) -> None:
    """Delete stored measurements that no campaign of the environment uses.

    The command first lists them, and says what differs from a run of today: parameters, seed, machine or libraries.
    Measurements of another environment in the same data folder count as unused, unless they differ only in parameters
    that change no timing, such as `visits`.

    With --busy, it deletes the measurements during which other programs used more than 10 % of this machine's cores.
    The next run makes them again.
    """
    with KedroSession.create(env=env, runtime_params=params) as session:
        catalog = session.load_context().catalog  # type: ignore[attr-defined]
        with locked(Path(catalog.load("data_root"))):
            found = list(records_to_delete(catalog, busy))
            if not found:
                click.echo(f"There are no {'disturbed' if busy else 'unused'} measurements.")
                return
            click.echo("\n".join(map(str, found)))
            if not yes:
                click.confirm("Delete them?", abort=True)
            for path in (path for records in found for path in records.paths):
                path.unlink()
            click.echo(f"Deleted records of {len(found)} campaigns.")


def _stored(dataset: Any, campaign: str, keys: Iterable[str], reason: str) -> StoredRecords:
    folder = Path(dataset._path)
    return StoredRecords(folder / campaign, tuple(folder / f"{key}{dataset._filename_suffix}" for key in keys), reason)


def _campaigns(load: Callable[[str], Any]) -> dict[str, Identity]:
    """Name of every dataset of records → identity of those that a run uses; `load` returns the value of a parameter."""
    seed = load("params:measure.seed")
    compute = ComputeMeasureParams.model_validate(load("params:measure.compute"))
    comm = CommMeasureParams.model_validate(load("params:measure.comm"))
    steps = {stage: JudgeParams.model_validate(load(f"params:{stage}.steps")) for stage in _PLAN_STAGES}
    return {
        "measure.compute_shards": ComputeCampaign(compute, seed).identity(),
        "measure.comm_shards": CommCampaign(comm, seed).identity(),
        **{f"{stage}.step_records": judge_identity(params) for stage, params in steps.items()},
    }
