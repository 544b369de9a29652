"""`benchmark.verdicts` as tables and sentences."""

from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.evaluation.steps import resolution
from neuroshard_pipeline.evaluation.verdicts import best_rival, find_pair
from neuroshard_pipeline.report.formats import MISSING, fixed, plural
from neuroshard_pipeline.report.sharder_summary import as_sentence, noise_note
from neuroshard_pipeline.report.terminal import aligned_table

_HEADER = [
    "sharder", "solved", "step ms", "relative", "conf. interval", "predicted step ms", "paper's cost ms", "s/task"
]  # fmt: skip


def benchmark_table(verdicts: Mapping[str, Any]) -> str:
    """`benchmark.verdicts` as text: for every suite a table and sentences about it, then the noise."""
    parts = [
        "\n".join([f"== {suite}\n{aligned_table(suite_table(verdict))}\n", *suite_sentences(suite, verdict)])
        for suite, verdict in verdicts["suites"].items()
    ]
    return "\n\n".join([*parts, benchmark_note(verdicts)])


def suite_sentences(suite: str, verdict: Mapping[str, Any]) -> list[str]:
    """The best sharder, neuroshard_plus against the best rival and the paper's search, and what is compared."""
    plus, paper = OURS
    pairs = [find_pair(verdict, plus, rival) for rival in (best_rival(verdict), paper)]
    told = [as_sentence(pair["statement"]) for pair in pairs if pair is not None and pair["ratio"] is not None]
    return [f"{suite}: {suite_verdict(verdict)}", *told, suite_note(verdict)]


def suite_table(verdict: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder of a suite, the cheapest first; sharders without a cost come last."""
    sharders = verdict["sharders"]
    ranked = sorted(sharders, key=lambda name: (sharders[name]["cost_ms"] is None, sharders[name]["cost_ms"] or 0.0))
    return [_HEADER, *(_sharder_line(name, sharders[name]) for name in ranked)]


def _sharder_line(name: str, values: Mapping[str, Any]) -> list[str]:
    relative = values["relative"] or {"value": None, "low": None, "high": None}
    return [
        name,
        f"{values['solved']}/{values['tried']}",
        fixed(values["cost_ms"], 3),
        fixed(relative["value"], 3),
        MISSING if relative["low"] is None else f"{relative['low']:.3f}-{relative['high']:.3f}",
        fixed(values["predicted_step_ms"], 3),
        fixed(values["paper_cost_ms"], 3),
        fixed(values["seconds"], 3),
    ]


def suite_verdict(verdict: Mapping[str, Any]) -> str:
    """One sentence: the best sharder of a suite, the sharders that cannot be distinguished, or why none is named."""
    common, possibly_best = verdict["common_tasks"], verdict["possibly_best"]
    if not common:
        return "no task has a cost of every compared sharder."
    basis = f"(mean {verdict['basis']} step of {plural(common, 'task')})"
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
        parts = [f"Steps are mean {basis} steps of {common} of {tasks} tasks: those with a cost of {who}."]
    if basis == "predicted":
        parts.append("No plan of this suite was measured.")
    elif unmeasured := verdict.get("unmeasured_tasks"):
        parts.append(f"Plans of {plural(unmeasured, 'task')} were not measured, so the comparison leaves them out.")
    parts.append(
        "The paper's cost is the predicted cost of lookups and collectives alone, which `neuroshard` minimises."
    )
    if left_out:
        parts.append(f"Not compared because they solved too few tasks: {', '.join(left_out)}.")
    if verdict["not_run"]:
        parts.append(f"Not run on this suite because they take too long: {', '.join(verdict['not_run'])}.")
    return " ".join(parts)


def benchmark_note(verdicts: Mapping[str, Any]) -> str:
    """What the measured steps are, and the noise of their measurement."""
    noise = verdicts["noise"]
    return (
        f"{verdicts['judge']} {noise_note({**noise, 'resolution': resolution(noise, noise['tasks'])}, noise['tasks'])}"
    )
