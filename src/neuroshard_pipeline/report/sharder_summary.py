"""`search.summary` as a table of sharders and as sentences."""

from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.report.formats import MISSING, amount, decimals_for, fixed, percent, plural


def ranked_costs(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean cost of every sharder in ms, the cheapest first; sharders without a cost come last, by name.

    The mean is taken over the tasks for which every sharder has a measured cost. If there is no such task, the costs
    are the predicted costs of whole steps, and the mean is taken over the tasks that every sharder solved.
    """
    costs = {}
    for name, values in summary["sharders"].items():
        measured_ms = values["mean_measured_ms"]
        costs[name] = _step_ms(values) if measured_ms is None else measured_ms
    order = sorted(costs, key=lambda name: (costs[name] is None, costs[name] or 0.0, name))
    return {name: costs[name] for name in order}


def sharder_table(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder, the cheapest first."""
    sharders, costs = summary["sharders"], ranked_costs(summary)
    best = min((cost for cost in costs.values() if cost is not None), default=None)
    keys = ["mean_measured_ms", "mean_predicted_ms", *(["mean_step_ms"] if has_whole_steps(summary) else [])]
    cost_decimals = decimals_for([values[key] for values in sharders.values() for key in keys])
    second_decimals = decimals_for([values["mean_seconds_per_task"] for values in sharders.values()])
    names = [f"{cost_word(summary)} ms", "vs best", "predicted ms", "predicted step ms"]
    lines = [["sharder", "solved", *names[: 1 + len(keys)], "s/task"]]
    for name, cost in costs.items():
        values = sharders[name]
        measured, *predicted = (fixed(values[key], cost_decimals) for key in keys)
        solved = f"{values['tasks_solved']}/{values['tasks_tried']}"
        relative = MISSING if cost is None or not best else f"{cost / best:.3f}"
        seconds = fixed(values["mean_seconds_per_task"], second_decimals)
        lines += [[name, solved, measured, relative, *predicted, seconds]]
    return lines


def has_whole_steps(summary: Mapping[str, Any]) -> bool:
    """Whether plans have predicted costs of parts that are not measured."""
    return any(_step_ms(values) != values.get("mean_predicted_ms") for values in summary.get("sharders", {}).values())


def _step_ms(values: Mapping[str, Any]) -> float | None:
    """Predicted cost of the whole step, or of the measured parts in an older summary, which predicts nothing else."""
    cost_ms: float | None = values.get("mean_step_ms", values.get("mean_predicted_ms"))
    return cost_ms


def cost_word(summary: Mapping[str, Any]) -> str:
    """`modelled` if every part of the costs of plans was modelled, or else `measured`."""
    return "modelled" if set(summary.get("costs_are", {}).values()) == {"modelled"} else "measured"


def cost_note(summary: Mapping[str, Any]) -> str:
    """Which tasks the costs of the sharder table are averaged over, and where the costs come from."""
    common, measured = int(summary["num_common_tasks"]), int(summary["num_measured_tasks"])
    if not common:
        return "No task was solved by every sharder, so mean costs cannot be compared."
    note = f"Costs are means over the {plural(common, 'task')} that every sharder solved."
    if has_whole_steps(summary):
        note += (
            " Measured and predicted costs have the same parts: lookups, all-to-all and reductions. The predicted step "
            "adds the input dist and TorchRec's own work, which only the pipeline `truth` measures for these plans."
        )
    if not measured and "embedding_cost" not in summary.get("prediction_on_plans", {}):
        return f"{note} No plan was measured."
    if not measured:
        note += (
            " Some plans were measured, but no task has measured costs of every sharder, so this table compares "
            "predicted costs. Figures and comparisons of two sharders use the measured costs that there are."
        )
    elif measured != common:
        note += f" Measured costs are means over {measured} of these tasks: those measured for every sharder."
    return f"{note} {origin_note(summary.get('costs_are', {}))}".strip()


def origin_note(costs_are: Mapping[str, str]) -> str:
    """A sentence that names the parts of "measured" costs that were modelled or recorded; empty if there are none.

    Args:
        costs_are: the origin of each part of the cost: `{"compute": "recorded", "comm": "modelled"}`.
    """
    names = {"compute": "compute", "comm": "communication"}
    others = [f"{names[part]} costs are {origin}" for part, origin in costs_are.items() if origin != "measured"]
    return f'Not every "measured" cost was measured on this machine: {" and ".join(others)}.' if others else ""


def comparison_notes(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that compare neuroshard_plus with the cheapest sharder outside `OURS` and with the paper's search."""
    others = [name for name, cost in ranked_costs(summary).items() if name not in OURS and cost is not None]
    rivals = [*others[:1], *OURS[1:]]
    return [
        as_sentence(pair["statement"]).replace(", measured,", f", {cost_word(summary)},")
        for pair in summary["pairs"]
        if pair["ours"] == OURS[0] and pair["rival"] in rivals and pair["ratio"] is not None
    ]


def as_sentence(statement: str) -> str:
    """The statement of a comparison as a sentence. A sharder's name at the start is not capitalised."""
    start = "No" if statement.startswith("no ") else statement[:2]
    return f"{start}{statement[2:]}."


def headline(summary: Mapping[str, Any]) -> str:
    """The result of a run in at most three sentences, whether or not our sharders win."""
    if not summary["sharders"]:
        return "No sharder was run."
    return f"{_cost_sentences(summary)} {_success_sentence(summary)}"


def _cost_sentences(summary: Mapping[str, Any]) -> str:
    costs = {name: cost for name, cost in ranked_costs(summary).items() if cost is not None}
    if not costs:
        return cost_note(summary)
    ours = [name for name in OURS if name in costs] or list(costs)[:1]
    others = [name for name in costs if name not in (*OURS, *ours)]
    measured = int(summary["num_measured_tasks"])
    basis, count = (cost_word(summary), measured) if measured else ("predicted", int(summary["num_common_tasks"]))
    means = " and ".join(f"{amount(costs[name])} ms with {name}" for name in ours)
    start = f"On the {plural(count, 'task')} with costs of every sharder, the mean {basis} embedding cost is {means}."
    if not others:
        return start
    changes = " and ".join(f"{name} is {_change(costs[name] / costs[others[0]] - 1)}" for name in ours)
    return f"{start} The best other sharder is {others[0]} with {amount(costs[others[0]])} ms; {changes}."


def _change(change: float) -> str:
    """`12 % cheaper`, `3.1 % more expensive` or `equally expensive`."""
    if abs(change) < 0.0005:
        return "equally expensive"
    return f"{percent(abs(change))} {'cheaper' if change < 0 else 'more expensive'}"


def _success_sentence(summary: Mapping[str, Any]) -> str:
    sharders = summary["sharders"]
    missing = {name: sharders[name]["tasks_tried"] - sharders[name]["tasks_solved"] for name in ranked_costs(summary)}
    failed = {name: count for name, count in missing.items() if count}
    if not failed:
        return "Every sharder solved every task."
    tried = plural(max(values["tasks_tried"] for values in sharders.values()), "task")
    complete = [name for name in OURS if name in sharders and name not in failed]
    start = f"{' and '.join(complete)} solved all {tried}; " if complete else ""
    who = " and ".join(failed) if len(failed) <= 2 else plural(len(failed), "sharder")
    most = f"up to {max(failed.values())}" if len(failed) > 1 else str(max(failed.values()))
    return f"{start}{who} found no plan for {most} of {'them' if complete else tried}."
