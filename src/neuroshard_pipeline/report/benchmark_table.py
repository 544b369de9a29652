"""`benchmark.verdicts` as tables and sentences."""

from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.report.facts import busy_note
from neuroshard_pipeline.report.formats import MISSING, fixed, plural
from neuroshard_pipeline.report.sharder_summary import origin_note
from neuroshard_pipeline.report.terminal import aligned_table

_HEADER = ["sharder", "solved", "cost ms", "relative", "conf. interval", "predicted ms", "imbalance", "s/task", "seeds"]
_STEP_PLACE = 6


def benchmark_table(verdicts: Mapping[str, Any], hardware: Mapping[str, Any]) -> str:
    """The benchmark as text: for every suite a table and one sentence (`suite_verdict`), then notes on noise.

    Args:
        verdicts: `benchmark.verdicts`.
        hardware: `benchmark.hardware`.
    """
    parts = [
        f"== {suite}\n{aligned_table(suite_table(verdict))}\n\n{suite}: {suite_verdict(verdict)}"
        for suite, verdict in verdicts["suites"].items()
    ]
    return "\n\n".join([*parts, f"{noise_note(hardware)} {busy_note(hardware)}".strip()])


def suite_table(verdict: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder of a suite, the cheapest first; sharders without a cost come last."""
    sharders = verdict["sharders"]
    ranked = sorted(sharders, key=lambda name: (sharders[name]["cost_ms"] is None, sharders[name]["cost_ms"] or 0.0))
    lines = [_HEADER, *(_sharder_line(name, sharders[name], verdict["basis"]) for name in ranked)]
    if not has_whole_steps(verdict):
        return lines
    steps = ["predicted step ms", *(fixed(sharders[name]["step_ms"], 3) for name in ranked)]
    return [[*line[:_STEP_PLACE], step, *line[_STEP_PLACE:]] for line, step in zip(lines, steps, strict=True)]


def has_whole_steps(verdict: Mapping[str, Any]) -> bool:
    """Whether plans of a suite have predicted costs of parts that are not measured."""
    sharders = verdict["sharders"].values()
    return any(values.get("step_ms", values["predicted_ms"]) != values["predicted_ms"] for values in sharders)


def _sharder_line(name: str, values: Mapping[str, Any], basis: str) -> list[str]:
    relative = values["relative"] or {"value": None, "low": None, "high": None}
    seeds = str(values["seeds"])
    if basis == "measured" and values["measured_seeds"] < values["seeds"]:
        seeds += f" ({values['measured_seeds']})"
    return [
        name,
        f"{values['solved']}/{values['tried']}",
        fixed(values["cost_ms"], 3),
        fixed(relative["value"], 3),
        MISSING if relative["low"] is None else f"{relative['low']:.3f}-{relative['high']:.3f}",
        fixed(values["predicted_ms"], 3),
        MISSING if values["imbalance"] is None else f"{100 * values['imbalance']:.0f} %",
        fixed(values["seconds"], 3),
        seeds,
    ]


def suite_verdict(verdict: Mapping[str, Any]) -> str:
    """One sentence: the best sharder of a suite, the sharders that cannot be distinguished, or why none is named."""
    common, possibly_best = verdict["common_tasks"], verdict["possibly_best"]
    if not common:
        return "no task has a cost of every compared sharder."
    basis = f"(mean {verdict['basis']} embedding cost of {plural(common, 'task')})"
    if verdict["best"]:
        return f"{verdict['best']} is best {basis}."
    if possibly_best:
        names = f"{', '.join(possibly_best[:-1])} and {possibly_best[-1]}"
        return f"there is no measurable difference between the best sharders, {names} {basis}."
    return f"there are too few common tasks ({common}) to name a best sharder."


def suite_note(verdict: Mapping[str, Any]) -> str:
    """Sentences about the tasks and sharders that the table of a suite compares."""
    basis, common, tasks = verdict["basis"], verdict["common_tasks"], verdict["tasks"]
    left_out = [name for name in verdict["sharders"] if name not in verdict["compared"]]
    who = "every compared sharder" if left_out else "every sharder"
    parts = [f"None of the {tasks} tasks has a cost of {who}."]
    if common:
        parts = [f"Costs are mean {basis} embedding costs of {common} of {tasks} tasks: those with a cost of {who}."]
    if basis == "predicted":
        parts.append("No plan of this suite was measured.")
    elif unmeasured := verdict.get("unmeasured_tasks"):
        parts.append(f"Plans of {plural(unmeasured, 'task')} were not measured, so the comparison leaves them out.")
    if has_whole_steps(verdict):
        parts.append(
            "“predicted ms” has the parts that this pipeline measures: lookups, all-to-all and reductions. “predicted "
            "step ms” adds the input dist and TorchRec's own work, which only the pipeline `truth` measures for plans."
        )
    if left_out:
        parts.append(f"Not compared because they solved too few tasks: {', '.join(left_out)}.")
    if verdict["not_run"]:
        parts.append(f"Not run on this suite because they take too long: {', '.join(verdict['not_run'])}.")
    return " ".join(parts)


def noise_note(hardware: Mapping[str, Any]) -> str:
    """Sentences that state the noise floor and the costs that were not measured on this machine."""
    compute = "recorded" if hardware.get("recording") else "measured"
    compute = "modelled" if hardware.get("modelled_device") else compute
    origins = {"compute": compute, "comm": hardware.get("comm_costs_are", "measured")}
    floor = hardware["noise_floor"]
    known = {
        "compute of a rank": floor["compute"].get("total", {}),
        "backward communication": floor["comm"].get("backward", {}),
        "forward communication": floor["comm"].get("forward", {}),
    }
    told = [f"{name} {100 * value['median']:.1f} %" for name, value in known.items() if value.get("median") is not None]
    note = "The noise floor is unknown because nothing was measured twice."
    if told:
        note = f"Noise floor of this campaign (median difference of two measurements): {', '.join(told)}."
    return f"{note} {origin_note(origins)}".strip()
