"""The commands of `neuroshard-pipeline` that need no project folder: `plan`, `replan` and `advise`."""

import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import NeuroShardError, PlanError, TaskError
from neuroshard_pipeline.evaluation.sweep import MEMORY_GIB, sweep
from neuroshard_pipeline.report.sweep_page import sweep_html, sweep_text
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import COMM_BYTES, DEFAULT_COMM_PRECISION, OPTIMIZERS, ShardingTask

_MODELLED = "All costs are modelled, from published measurements and a recording of one GPU (docs/lab.md)."
_GIB = 2**30
_FILE = click.Path(dir_okay=False, path_type=Path)


class _List(click.ParamType):
    """Comma-separated values."""

    def __init__(self, kind: type, example: str) -> None:
        self.kind, self.name, self.example = kind, f"{kind.__name__},...", example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return [self.kind(each.strip()) for each in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} must be numbers with commas between them, such as {self.example}", param, ctx)


#: Options that say what the tables are planned for.
_TASK = (
    click.option("--batch-size", type=int, default=65536, show_default=True, help="Samples of a step over all GPUs."),
    click.option("--memory-gib", type=float, help="GiB per GPU for embeddings; by default, 64 of 80 and 120 of 141."),
    click.option("--host-memory-gib", type=float, help="GiB of host memory per GPU that embeddings may use."),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="rowwise_adagrad", show_default=True),
    click.option("--comm-precision", type=click.Choice(list(COMM_BYTES)), default=DEFAULT_COMM_PRECISION),
    click.option("--pipelined", is_flag=True, help="The trainer exchanges ids while it computes on the batch before."),
    click.option("--html", type=_FILE, help="Also write a page."),
)
#: Options of a single task.
_ONE = (
    click.option("--models", default="h100", show_default=True, help="A GPU, or a folder such as data/06_models."),
    click.option("--ranks", type=int, default=8, show_default=True, help="Number of GPUs."),
)


class _Commands(click.Group):
    """Commands whose errors are one line if they are errors of this project."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NeuroShardError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands)
def commands() -> None:
    """Plan embedding tables without a project folder."""


def _command(*options: Callable[[Any], Any]) -> Callable[[Any], click.Command]:
    return lambda function: commands.command()(reduce(lambda found, option: option(found), reversed(options), function))


@_command(
    click.argument("tables"),
    click.option("--gpus", type=_List(str, "h100,h200"), default="h100", show_default=True, help="a100, h100, h200."),
    click.option("--ranks", type=_List(int, "8,16"), default="8", show_default=True, help="Numbers of GPUs."),
    *_TASK,
    click.option("--dense-gib", type=float, default=0.0, help="GiB per GPU of the dense part; no plan changes."),
    click.option("--workers", type=click.IntRange(min=1), help="Processes; by default, one per core."),
    click.option("--out", type=_FILE, help="Also write the fastest plan, as a JSON document for TorchRec."),
)
def plan(tables: str, gpus: list[str], ranks: list[int], html: Path | None, out: Path | None, **options: Any) -> None:
    """Plan embedding tables for several GPUs and sizes of a cluster.

    TABLES is a .csv, .parquet or .json file of tables, or a .txt or .log file with the output of TorchRec's planner.
    Exits with status 1 if the tables fit nowhere.
    """
    read = read_tables(tables)
    found = sweep(read, gpus, ranks, **_fields(options))
    about = f"{len(read)} tables of {sum(table.weight_bytes for table in read) / _GIB:.1f} GiB, batches of "
    about += f"{options['batch_size']} samples, {options['optimizer']}"
    click.echo(f"{about}\n\n{sweep_text(found)}\n\n{_MODELLED}")
    _write(html, lambda: sweep_html(found, f"Plans for {Path(tables).name}", [about, _MODELLED]))
    fastest = min(found, key=lambda candidate: candidate.step_ms).plan
    if fastest is None:
        raise SystemExit(1)
    _write_plan(out, fastest)


@_command(
    click.argument("tables"),
    click.argument("present"),
    *_ONE,
    *_TASK,
    click.option("--gib-per-rank", type=_List(float, "1,4"), default=(), help="Limits of what a GPU moves."),
    click.option("--steps", type=click.IntRange(min=1), default=100_000, show_default=True, help="Steps to come."),
    click.option("--least-saving", type=float, default=0.02, show_default=True, help="Share of a step to be saved."),
    click.option("--out", type=_FILE, help="Also write the recommended plan, as a JSON document for TorchRec."),
)
def replan(
    tables: str,
    present: str,
    gib_per_rank: list[float],
    steps: int,
    least_saving: float,
    html: Path | None,
    out: Path | None,
    **task: Any,
) -> None:
    """Plan from the plan that runs: what moves, how long it takes, and when it has paid.

    TABLES is the table file of today, and PRESENT the JSON document of the plan that runs.
    """
    from neuroshard_pipeline.replanning import replan as choices_of
    from neuroshard_pipeline.report.plan_page import render_replan
    from neuroshard_pipeline.report.replan_tables import VerdictParams, replan_text
    from neuroshard_pipeline.torchrec_bridge.running import read_plan

    today, models = _task(tables, **task)
    found = choices_of(read_plan(present, today), today, models, gib_per_rank)
    verdict = VerdictParams(steps=steps, least_saving=least_saving)
    click.echo(replan_text(found, verdict))
    _write(html, lambda: render_replan(found, verdict))
    _write_plan(out, found.best(steps, least_saving).plan)


@_command(click.argument("tables"), *_ONE, *_TASK)
def advise(tables: str, html: Path | None, **task: Any) -> None:
    """What would make the step faster: changes of the task, each planned anew, with what they gain and cost.

    TABLES is a table file. Ctrl-C ends it early, with what was planned until then.
    """
    from neuroshard_pipeline.advice import advise as advice_for
    from neuroshard_pipeline.report.advice_page import advice_html, advice_text

    advice = advice_for(*_task(tables, **task))
    click.echo(advice_text(advice))
    _write(html, lambda: advice_html(advice))


def _task(tables: str, models: str, ranks: int, **options: Any) -> tuple[ShardingTask, CostModels]:
    gib = options.pop("memory_gib") or MEMORY_GIB.get(models)
    if gib is None:
        raise TaskError(f"--models {models} does not say how much memory a GPU has; add --memory-gib")
    task = ShardingTask(read_tables(tables), ranks, memory_bytes=int(gib * _GIB), **_fields(options))
    return task, load_cost_models(models)


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Fields of a task."""
    host_gib, pipelined = options.pop("host_memory_gib"), options.pop("pipelined")
    in_host = None if host_gib is None else int(host_gib * _GIB)
    return options | {"host_memory_bytes": in_host, "pipelines_input_dist": pipelined}


def _write(path: Path | None, text: Callable[[], str]) -> None:
    if path is not None:
        try:
            path.write_text(text(), encoding="utf-8")
        except OSError as error:
            raise PlanError(f"{path}: cannot be written ({error.strerror}); name a file in a folder") from None


def _write_plan(path: Path | None, found: Plan) -> None:
    from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json

    _write(path, lambda: json.dumps(plan_to_json(found), indent=1))
