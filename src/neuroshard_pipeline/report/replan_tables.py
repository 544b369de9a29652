"""Text about the choices of a change of plan (`replanning`)."""

from pydantic import Field, PositiveInt

from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.replanning import Choice, Judgement, Replan
from neuroshard_pipeline.report.formats import MISSING, amount, fixed, percent
from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.search.explain import sum_text

_GIB = 2**30


class VerdictParams(Parameters):
    """When a change of plan pays.

    Attributes:
        steps: training steps for which the chosen plan will run.
        least_saving: share of a step's time that a change must save. Cost models do not resolve less.
    """

    steps: PositiveInt
    least_saving: float = Field(ge=0, lt=1)


def best_choice(replan: Replan, params: VerdictParams) -> Choice:
    """The choice with the least time for its move and all steps, among `keep` and those that save enough."""
    first = replan.choices[0]
    least_ms = params.least_saving * (first.plan.predicted_cost_ms or 0.0)
    worthy = [first, *(choice for choice in replan.choices[1:] if choice.saved_ms >= least_ms)]
    return min(worthy, key=lambda each: each.move.move_ms + params.steps * (each.plan.predicted_cost_ms or 0.0))


def replan_text(replan: Replan, params: VerdictParams) -> str:
    """The present plan, a table of the choices, and a verdict."""
    return "\n\n".join([judgement_text(replan.judgement), aligned_table(choice_rows(replan)), verdict(replan, params)])


def judgement_text(judgement: Judgement) -> str:
    """What the present plan costs now, part by part on its slowest rank, whether it fits, and what is wrong with it."""
    lines = ["the present plan cannot run as it is"]
    cost = judgement.predicted
    if cost is not None:
        slowest = max(range(len(cost.rank_ms)), key=lambda rank: cost.rank_ms[rank])
        fits = "fits" if judgement.fits else "does not fit"
        lines = [f"the present plan {fits}; predicted step on rank {slowest}: {sum_text(cost, slowest)}"]
    return "\n".join([*lines, *(f"  - {problem}" for problem in judgement.problems)])


def choice_rows(replan: Replan) -> list[list[str]]:
    """Header and one row per choice."""
    header = ["choice", "predicted step ms", "GiB per rank", "GiB over the slowest link", "ms to move"]
    rows = [[*header, "saved ms per step", "pays after steps"]]
    for choice in replan.choices:
        move, pays = choice.move, choice.pays_after
        sizes = [f"{size / _GIB:.3g}" for size in (move.rank_bytes, move.link_bytes)]
        saved = fixed(choice.saved_ms, 3) if choice.saved_ms else MISSING
        step, steps = fixed(choice.plan.predicted_cost_ms, 3), MISSING if pays is None else fixed(pays, 0)
        rows.append([choice.name, step, *sizes, amount(move.move_ms), saved, steps])
    return rows


def verdict(replan: Replan, params: VerdictParams) -> str:
    """Which choice takes the least time over all steps."""
    best, first = best_choice(replan, params), replan.choices[0]
    if best is first:
        return f"Take {first.name!r}: no other choice saves enough time in {params.steps:,} steps."
    share = percent(best.saved_ms / (first.plan.predicted_cost_ms or 1.0))
    return (
        f"Take {best.name!r}: its move takes {amount(best.move.move_ms)} ms once by the cost models' network, and "
        f"every step is predicted to take {share} less than with {first.name!r}."
    )
