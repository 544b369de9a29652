"""What a stored plan was made for: tables, ranks, memory, cost models and options, with a hash."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.evaluation.digests import content, digest
from neuroshard_pipeline.replanning.present import named, table_changes
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import on_hosts_of
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import Json, plan_from_json, read_document, read_task, task_to_json

#: Characters of a value that an error shows.
_SHOWN = 60


@dataclass(frozen=True)
class MadeFor:
    """What a plan is made for and with: the task that was asked for, models, settings, and the sharder with its seed.

    Searches may change tables of the task, for example cut them into tiers.
    """

    task: ShardingTask
    models: Models
    settings: SharderSettings
    sharder: str = "neuroshard_plus"
    seed: int = 0

    def to_json(self) -> Json:
        """The part `made_for` of a plan document."""
        values = {
            "task": task_to_json(replace(on_hosts_of(self.models, self.task), task_id="")),
            "models": {"name": repr(self.models), "hash": digest(content(self.models))},
            "options": {
                **{each.name: getattr(self.settings, each.name).model_dump() for each in fields(self.settings)},
                "sharder": self.sharder,
                "seed": self.seed,
            },
        }
        return {**values, "hash": digest(values)}

    def differences(self, document: Mapping[str, Any]) -> list[str]:
        """In sentences, what was different when a plan document was made; empty if it was made for exactly this."""
        then, now = document.get("made_for"), self.to_json()
        if then is None:
            return ["the document does not say what it was made for"]
        if then["hash"] == now["hash"]:
            return []
        found = list(_task_differences(read_task(then["task"]), read_task(now["task"])))
        if then["models"]["hash"] != now["models"]["hash"]:
            found.append(f"the cost models are {now['models']['name']} and were {then['models']['name']}")
        before = then["options"]
        return found + [
            f"the option {name} is {value!r:.{_SHOWN}} and was {before.get(name)!r:.{_SHOWN}}"
            for name, value in now["options"].items()
            if value != before.get(name)
        ]


def load_plan(source: str | Path | Mapping[str, Any], made_for: MadeFor) -> Plan:
    """A stored plan, if it was made for exactly this.

    `ns.replan(read_plan(source, task), task, models)` takes a plan that was made for something else as its start.

    The source is a document of `plan_to_json` with `made_for`, or its path.

    Raises:
        PlanError: it was made for something else; the message says for what, in words.
    """
    document = read_document(source)
    where = source if isinstance(source, str | Path) else "the plan document"
    if differences := made_for.differences(document):
        raise PlanError(
            f"{where}: the plan was made for something else: {'; '.join(differences)}. Plan again, from this plan with "
            "replan or from nothing with shard"
        )
    return plan_from_json(document)


def _task_differences(then: ShardingTask, now: ShardingTask) -> Iterator[str]:
    yield from table_changes({table.name: table for table in then.tables}, now)
    before, here = ({table.name: table for table in task.tables} for task in (then, now))
    changed = {
        name: {each.name for each in fields(table) if getattr(table, each.name) != getattr(before[name], each.name)}
        for name, table in here.items()
        if name in before
    }
    kinds = {name: others - {"num_embeddings", "embedding_dim"} for name, others in changed.items()}
    if others := sorted(set().union(*kinds.values())):
        yield f"{named(sorted(name for name in kinds if kinds[name]))} had other values ({', '.join(others)})"
    for each in fields(ShardingTask):
        one, other = getattr(then, each.name), getattr(now, each.name)
        if each.name not in ("tables", "task_id") and one != other:
            yield f"{each.name} is {other!r:.{_SHOWN}} and was {one!r:.{_SHOWN}}"
