r"""Compares plans of sequence tables with and without tiers: bytes across hosts, communication time, memory, a bound.

Tiers are parts of a table by popularity: the hot tier has a copy on every rank, the host tier one copy per host.

    OMP_NUM_THREADS=1 python benchmarks/tiers/bench_tiers.py lab  # 2 x 8 (2 min) and 16 x 8 (8 min) modelled H100
    OMP_NUM_THREADS=1 python benchmarks/tiers/bench_tiers.py gloo             # 4 and 8 processes; 8 min
    OMP_NUM_THREADS=1 python benchmarks/tiers/bench_tiers.py hosts --mbit 400 # two emulated hosts; needs root; 12 min
    OMP_NUM_THREADS=1 python benchmarks/tiers/bench_tiers.py lab --quick      # one popularity; also for gloo, hosts

Tasks are those of `sequence_tasks`. All plans of a task have the same memory limit. Plans without tiers: that of
`neuroshard_plus`, that of TorchRec's planner, and that of `neuroshard_plus` if every rank sends each id of its samples
once (`dedup`, TorchRec's `use_index_dedup`). Plans with tiers: those of `neuroshard_plus`, with and without `dedup`,
and `fewest bytes`, which chooses rows for copies as the bound of bytes does (`fewest_bytes.py`). The lab also has
`least comm`, which chooses them as the bound of communication time does (`least_communication.py`).

In the lab (formulas for modelled GPUs), the search knows the reuse profile of one batch, or the popularity curve of
`--batches` batches; tiers hold the rows that are most popular in the distribution from which ids are drawn, and this
distribution gives their lookups. On gloo, tiers hold the rows that were most popular in eight other batches, whose
popularity curve the search knows.

- `lab`: bytes are expectations (`search.volumes`). Times are the lab's formulas; `comm` is the sum of all collectives.
- `gloo`, `hosts`: bytes are those of recorded collectives; with one host, every rank counts as a host. `comm` is the
  time of a step's collectives if they run alone; `step` is that of the whole step. `wire`: Linux's count of sent bytes.
- `GiB/rank`, in the lab: memory of the fullest rank, which the limit bounds: weights, optimizer state, dense gradients
  of copied rows, and the index that finds the copies by id; `+ buffers`: also the ids and rows that ranks exchange.
- `bound`: no plan that keeps rows whole sends fewer bytes across hosts (`crossing_bound`). The line gives the
  largest possible savings of all bytes and of the all-to-alls' bytes, compared with balanced plans without tiers and
  without `dedup`.
- `comm bound`, in the lab: no plan needs less time for communication (`communication_bound.py`), with the memory of the
  task and with unlimited memory. The factors compare with the first plan.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from communication_bound import communication_bound
from crossing_bound import crossing_bound
from fewest_bytes import plan_with_fewest_bytes
from least_communication import plan_with_least_communication
from row_popularity import POPULARITIES
from sequence_tasks import SCALES, SequenceTask, judged, sequence_task
from tier_costs import DEVICE, NETWORK, bytes_of, bytes_with_buffers, collectives_ms

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.lab.step import step_cost_ms
from neuroshard_pipeline.report.formats import percent
from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.popularity import PopularityCurve, curve_of_counts, popular_rows

#: Name of a plan → sharder, and fields of the task.
PLANS: dict[str, tuple[str, dict[str, bool]]] = {
    "no tiers": ("neuroshard_plus", {}),
    "torchrec": ("torchrec", {}),
    "tiers": ("neuroshard_plus", {"tiers": True}),
    "dedup": ("neuroshard_plus", {"index_dedup": True}),
    "dedup + tiers": ("neuroshard_plus", {"index_dedup": True, "tiers": True}),
    "fewest bytes": ("fewest_bytes", {}),
    "dedup + fewest": ("fewest_bytes", {"index_dedup": True}),
    "least comm": ("least_communication", {}),
    "dedup + least": ("least_communication", {"index_dedup": True}),
}
#: Plans that are made only in the lab, because they are chosen by the formulas of its cluster.
_OF_LAB = ("least comm", "dedup + least")
#: More memory than any plan needs.
_PLENTY = 2**50
#: Seed of the first batch whose ids are counted; measured batches have smaller seeds.
_COUNTED = 100


def solved(
    source: SequenceTask, models: Models, names: Sequence[str], curves: Mapping[str, PopularityCurve]
) -> dict[str, Plan | str]:
    """The plans of a task by name, or why there is none."""
    found: dict[str, Plan | str] = {}
    for name in names:
        sharder, fields = PLANS[name]
        task = replace(source.task, **fields)
        try:
            if sharder == "fewest_bytes":
                found[name] = plan_with_fewest_bytes(task, curves, models)
            elif sharder == "least_communication":
                found[name] = plan_with_least_communication(task, source.popularities, curves, models, NETWORK)
            else:
                found[name] = shard(task, models, sharder)
        except NeuroShardError as error:
            found[name] = " ".join(str(error).split())[:100]
    return found


LAB_HEADER = [
    "plan",
    *("across GB: a2a", "gradients", "fewer", "a2a fewer", "inside GB"),
    *("comm ms", "faster", "step ms", "GiB/rank", "+ buffers"),
]


def lab_rows(source: SequenceTask, plans: dict[str, Plan | str]) -> list[list[str]]:
    """One row per plan."""
    rows, base = [], None
    for name, plan in plans.items():
        if isinstance(plan, str):
            rows.append([name, plan, *[""] * (len(LAB_HEADER) - 2)])
            continue
        task, shards = judged(plan, source.sources)
        cost = step_cost_ms(task, shards, plan.ranks, DEVICE, NETWORK)
        comm_ms = collectives_ms(task, shards, plan.ranks)
        sent = bytes_of(task, shards, plan.ranks)
        base = base or (sent.across, comm_ms)
        row = [f"{sent.exchanged / 1e9:.2f}", f"{sent.reduced / 1e9:.2f}", percent(1 - sent.across / base[0])]
        row += [percent(1 - sent.exchanged / base[0]), f"{sent.inside / 1e9:.2f}", f"{comm_ms:.2f}"]
        row += [f"{base[1] / comm_ms:.2f}", f"{cost.step_ms:.2f}", f"{max(plan.memory_bytes) / 2**30:.2f}"]
        row.append(f"{bytes_with_buffers(task, shards, plan.ranks) / 2**30:.2f}")
        rows.append([name, *row])
    return rows


def bound_line(source: SequenceTask) -> str:
    """The bound, as the fewest bytes and as the largest share that can be saved."""
    parts = []
    for words, dedup in (("", False), (" with dedup", True)):
        bound = crossing_bound(source.task, source.popularities, default_memory(), dedup)
        parts.append(
            f"bound{words}: at most {percent(1 - bound.least_share)} fewer with gradients "
            f"({bound.least_bytes / 1e9:.4g} GB), a2a {percent(1 - bound.least_all_to_all_share)}"
        )
    return "; ".join(parts)


def time_bound_line(source: SequenceTask, base_ms: float) -> str:
    """The bound of communication time, and how many times lower it is than `base_ms`."""
    parts = []
    for words, dedup in (("", False), (" with dedup", True)):
        of_memory = [
            replace(source.task, index_dedup=dedup, memory_bytes=each) for each in (source.task.memory_bytes, _PLENTY)
        ]
        least = [
            communication_bound(task, source.popularities, default_memory(), NETWORK).least_ms for task in of_memory
        ]
        parts.append(
            f"comm bound{words}: at least {least[0]:.2f} ms, at most {base_ms / least[0]:.2f} times lower (with "
            f"unlimited memory {least[1]:.2f} ms, {base_ms / least[1]:.2f} times)"
        )
    return "; ".join(parts)


def run_lab(arguments: argparse.Namespace) -> None:
    """Judge all plans by the lab."""
    models = load_cost_models(arguments.models or "h100")
    for scale in arguments.scales:
        world_size = int(scale.rpartition("-")[2])
        for popularity in arguments.popularities:
            source = sequence_task(popularity, world_size, 8, SCALES[scale])
            if arguments.batches > 1:
                source = source.with_curves(source.curves_of_batches(arguments.batches))
            limit = source.task.memory_bytes / 2**30  # type: ignore[operator]
            print(f"\n{popularity}, {world_size // 8} x 8 H100, {limit:.2f} GiB per rank\n")
            plans = solved(source, models, arguments.plans, source.curves)
            print(aligned_table([LAB_HEADER, *lab_rows(source, plans)]))
            print(bound_line(source))
            base = next((plan for plan in plans.values() if isinstance(plan, Plan)), None)
            if base is not None:
                print(time_bound_line(source, collectives_ms(*judged(base, source.sources), base.ranks)), flush=True)


def run_gloo(arguments: argparse.Namespace) -> None:
    """Measure all plans with gloo, on this host or on two emulated ones."""
    from measured_models import described, measured_models
    from tiers_on_gloo import Job, measure

    scale = SCALES["quick" if arguments.quick else "gloo"]
    header = [
        "plan",
        "across MB: a2a",
        "gradients",
        "fewer",
        "inside MB",
        "wire MB",
        "comm ms",
        "faster",
        "step ms",
        "faster",
    ]
    for world_size in arguments.world_sizes:
        local = world_size // 2 if arguments.mbit else world_size
        for popularity in arguments.popularities:
            source = sequence_task(popularity, world_size, local, scale)
            if arguments.models:
                models: Models = load_cost_models(arguments.models)
            else:
                models = measured_models(source.task, arguments.mbit)
                print(f"\n{described(models)}")
            counts = source.counts(range(_COUNTED, _COUNTED + 8))
            curves = {name: curve_of_counts(of) for name, of in counts.items()}
            plans = solved(source.with_curves(curves), models, arguments.plans, curves)
            usable = {name: plan for name, plan in plans.items() if isinstance(plan, Plan)}
            popular = {name: popular_rows(of, of.num_embeddings) for name, of in counts.items()}
            batches = [source.batch(seed) for seed in range(2)]
            found = measure(Job(usable, popular, batches, arguments.rounds, arguments.steps), arguments.mbit)
            base, rows = found[next(iter(found))], []
            for name, of in found.items():
                row = [f"{(of.across_bytes - of.reduced_bytes) / 1e6:.2f}", f"{of.reduced_bytes / 1e6:.2f}"]
                row += [percent(1 - of.across_bytes / base.across_bytes), f"{of.inside_bytes / 1e6:.2f}"]
                row += ["-" if of.wire_bytes is None else f"{of.wire_bytes / 1e6:.2f}", f"{of.comm_ms:.1f}"]
                row += [f"{base.comm_ms / of.comm_ms:.2f}", f"{of.step_ms:.1f}", f"{base.step_ms / of.step_ms:.2f}"]
                rows.append([name, *row])
            hosts = f"2 emulated hosts, {arguments.mbit:g} Mbit/s" if arguments.mbit else "one host"
            print(f"\n{popularity}, {world_size} processes, {hosts}\n\n{aligned_table([header, *rows])}")
            print("\n".join(f"{name}: {why}" for name, why in plans.items() if isinstance(why, str)))
            print(bound_line(source), flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=("lab", "gloo", "hosts"))
    parser.add_argument("--popularities", nargs="+", choices=POPULARITIES, default=list(POPULARITIES))
    parser.add_argument("--plans", nargs="+", choices=list(PLANS), help="default: all; the last two only in the lab")
    parser.add_argument("--scales", nargs="+", choices=("lab-16", "lab-128"), default=["lab-16", "lab-128"])
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--mbit", type=float, default=None, help="bandwidth between emulated hosts")
    parser.add_argument(
        "--models",
        help="a folder of trained cost models, or the name of shipped ones; the default is h100 in the lab, and "
        "otherwise models of collectives and kernels that the ranks time first (measured_models.py)",
    )
    parser.add_argument("--batches", type=int, default=1, help="lab: batches whose ids the search knows")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="steps of a plan in each round; the first is not timed")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one popularity; 16 ranks in the lab; 4 ranks, small tables and 2 rounds for gloo and hosts",
    )
    arguments = parser.parse_args()
    if arguments.quick:
        small = {"popularities": ["published"], "scales": ["lab-16"], "world_sizes": [4], "rounds": 2, "steps": 3}
        arguments = argparse.Namespace(**vars(arguments) | small)
    arguments.plans = arguments.plans or [name for name in PLANS if arguments.where == "lab" or name not in _OF_LAB]
    if arguments.where == "hosts":
        from bench_two_hosts import why_not

        if (reason := why_not()) is not None:
            raise SystemExit(f"Error: {reason}")
        arguments.mbit = arguments.mbit or 400.0
    elif arguments.where == "gloo":
        arguments.mbit = None
    try:
        run_lab(arguments) if arguments.where == "lab" else run_gloo(arguments)
    except NeuroShardError as error:
        raise SystemExit(f"Error: {error}") from None


if __name__ == "__main__":
    main()
