"""The command `neuroshard-pipeline plan`: how many GPUs do these tables need? It needs no project folder."""

from pathlib import Path
from typing import Any

import click

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.evaluation.sweep import MEMORY_GIB, sweep
from neuroshard_pipeline.report.sweep_page import sweep_html, sweep_text
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import COMM_BYTES, DEFAULT_COMM_PRECISION, OPTIMIZERS

_MODELLED = "All costs are modelled from published measurements (docs/lab.md), not measured."


class _List(click.ParamType):
    """Comma-separated values."""

    def __init__(self, kind: type) -> None:
        self.kind, self.name = kind, f"{kind.__name__},..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return [self.kind(each.strip()) for each in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} must be whole numbers with commas between them, such as 8,16", param, ctx)


@click.command(name="plan")
@click.argument("tables")
@click.option("--gpus", type=_List(str), default="h100", show_default=True, help=f"Some of {', '.join(MEMORY_GIB)}.")
@click.option("--ranks", type=_List(int), default="8", show_default=True, help="Numbers of GPUs.")
@click.option("--batch-size", type=int, default=65536, show_default=True, help="Samples of a step over all GPUs.")
@click.option("--memory-gib", type=float, help="GiB per GPU for embeddings; by default, 64 of 80 and 120 of 141.")
@click.option("--host-memory-gib", type=float, help="GiB of host memory per GPU that embeddings may use.")
@click.option("--dense-gib", type=float, default=0.0, help="GiB per GPU that the dense part needs; no plan changes.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="rowwise_adagrad", show_default=True)
@click.option("--comm-precision", type=click.Choice(list(COMM_BYTES)), default=DEFAULT_COMM_PRECISION)
@click.option("--pipelined", is_flag=True, help="The trainer exchanges ids while it computes on the batch before.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page, with all plans.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; by default, one per core.")
def plan(
    tables: str,
    gpus: list[str],
    ranks: list[int],
    html: Path | None,
    host_memory_gib: float | None,
    pipelined: bool,
    **options: Any,
) -> None:
    """Plan embedding tables for several GPUs and sizes of a cluster.

    TABLES is a .csv, .parquet or .json file of tables, or a .txt or .log file with the output of TorchRec's planner.
    Exits with status 1 if the tables fit nowhere.
    """
    in_host = None if host_memory_gib is None else int(host_memory_gib * 2**30)
    try:
        read = read_tables(tables)
        found = sweep(read, gpus, ranks, host_memory_bytes=in_host, pipelines_input_dist=pipelined, **options)
    except NeuroShardError as error:
        raise click.ClickException(str(error)) from None
    about = f"{len(read)} tables of {sum(table.weight_bytes for table in read) / 2**30:.1f} GiB, batches of "
    about += f"{options['batch_size']} samples, {options['optimizer']}"
    click.echo(f"{about}\n\n{sweep_text(found)}\n\n{_MODELLED}")
    if html is not None:
        html.write_text(sweep_html(found, f"Plans for {Path(tables).name}", [about, _MODELLED]), encoding="utf-8")
    if all(candidate.plan is None for candidate in found):
        raise SystemExit(1)
