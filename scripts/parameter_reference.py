"""Writes docs/reference/parameters.md from conf/base and from the types of the parameters.

`make docs` runs it before every build, so that the page cannot disagree with the code:

    python scripts/parameter_reference.py docs/reference/parameters.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from inspect import getdoc, isclass, signature
from pathlib import Path
from typing import Any, get_type_hints

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "lab"))

import yaml
from cluster_sheets import ClusterSheet, GpuSheet, NetworkFitParams
from kedro.config import OmegaConfigLoader
from kedro.framework.startup import bootstrap_project
from kedro.pipeline.node import Node
from pydantic import BaseModel

from neuroshard_pipeline.lab.device import DeviceParams, KernelParams
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.step_groups import StepParams

try:
    from griffe import Docstring, DocstringSectionKind
except ModuleNotFoundError:
    sys.exit("griffe is not installed; install the extra `docs`: pip install -e '.[docs]', or run: make docs")

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf" / "base"
PREFIX = "params:"
LONGEST_VALUE = 60

#: Parameter groups that no node reads: the modules of the lab read them from the package's own parameter file. A group
#: in `LAB_ENTRIES` has named entries, such as one per GPU, and the type is that of each entry.
LAB: dict[str, type[BaseModel]] = {
    "lab.kernels": KernelParams,
    "lab.step": StepParams,
    "lab.network_fit": NetworkFitParams,
}
LAB_ENTRIES: dict[str, type[BaseModel]] = {
    "lab.devices": DeviceParams,
    "lab.networks": NetworkParams,
    "lab.gpus": GpuSheet,
    "lab.clusters": ClusterSheet,
}

#: Parameters without a type, which belong to no group, and their meanings.
SINGLE: dict[str, str] = {
    "measure.seed": "Seed of the lookup ids, of the order of visits, and of the choice of samples to measure twice.",
    "expected_seconds": "Seconds of each stage on the reference machine; null if a run shall announce no duration.",
    "budgeted_seconds": "Seconds to which time budgets of the campaigns limit measure and search on a slower machine.",
}

INTRODUCTION = """\
# Parameters

All parameters have their values in `conf/base/`; an environment (`conf/<env>/`) overrides some of them.
To change one value for one run:

```console
$ .venv/bin/kedro run --params search.neuroshard_plus.max_rounds=200
```

Kedro checks the parameters before the first node runs. An unknown name or an invalid value ends the run with an error.
This page is generated from `conf/base/` and from the parameter types.
*Default* is the value in `conf/base/`. The small text below a meaning is the comment beside this value.
"""


def typed_parameters() -> dict[str, type[BaseModel]]:
    """For every parameter group that a node reads, its name without `params:` and its type."""
    from kedro.framework.project import pipelines

    bootstrap_project(ROOT)
    found: dict[str, type[BaseModel]] = {}
    for pipeline in pipelines.values():
        for node in pipeline.nodes:
            for name, hint in _hinted_inputs(node):
                if name.startswith(PREFIX) and isclass(hint) and issubclass(hint, BaseModel):
                    found[name.removeprefix(PREFIX)] = hint
    return found


def _hinted_inputs(node: Node) -> Iterator[tuple[str, Any]]:
    """The datasets and parameters that a node reads, each with the type hint of its argument."""
    if not hasattr(node.func, "__name__"):
        return
    hints = get_type_hints(node.func)
    inputs = node._inputs
    if isinstance(inputs, str):
        inputs = [inputs]
    names = inputs if isinstance(inputs, dict) else signature(node.func).bind(*inputs or []).arguments
    for argument, value in names.items():
        if isinstance(value, str):
            yield value, hints.get(argument)


def meanings(params: type[BaseModel]) -> dict[str, str]:
    """The entries of the `Attributes:` sections of a type and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(params.__mro__):
        if not isclass(base) or not issubclass(base, BaseModel) or base is BaseModel:
            continue
        for section in Docstring(getdoc(base) or "").parse("google", warnings=False):
            if section.kind is DocstringSectionKind.attributes:
                found |= {entry.name: " ".join(entry.description.split()) for entry in section.value}
    return found


def summary(params: type[BaseModel]) -> str:
    """The first paragraph of a type's docstring."""
    return " ".join((getdoc(params) or "").split("\n\n")[0].split())


def values_and_notes() -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """All parameters of conf/base, nested; the comment beside each value, by dotted name; and the file of each name."""
    loader = OmegaConfigLoader(str(CONF.parent), base_env="base", default_run_env="base")
    notes: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in sorted(CONF.glob("parameters*.yml")):
        text = path.read_text()
        for name, line, column in _leaves(yaml.compose(text), ()):
            files[name] = path.name
            comment = text.splitlines()[line][column:].strip()
            if comment.startswith("#"):
                notes[name] = comment.lstrip("# ").strip()
    return loader["parameters"], notes, files


def _leaves(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
    """The dotted name of every key, and the line and column behind which a comment on the key or its value stands."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*path, key.value)
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield ".".join(here), key.end_mark.line, key.end_mark.column + 1
            yield from _leaves(value, here)
        else:
            yield ".".join(here), value.end_mark.line, value.end_mark.column


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        text = value
    if len(text) > LONGEST_VALUE and isinstance(value, list | dict):
        return f"{len(value)} entries"
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def group(name: str, params: type[BaseModel], value: Any, notes: dict[str, str]) -> str:
    """One parameter group: a heading, its meaning, and a table of its entries."""
    text, fields = _sentence(summary(params)), list(params.model_fields)
    lines = [f"### `{name}`", "", text, ""]
    lines += ["| parameter | default | meaning |", "| --- | --- | --- |"]
    texts = meanings(params)
    for field in fields:
        meaning = _sentence(texts.get(field, ""))
        note = notes.get(f"{name}.{field}")
        if note:
            meaning += f"<br><small>{_sentence(note)}</small>"
        default = value.get(field, params.model_fields[field].default)
        lines.append(f"| `{field}` | {_shown(default)} | {_cell(meaning)} |")
    return "\n".join(lines)


def entries(name: str, params: type[BaseModel], value: dict[str, Any]) -> str:
    """A parameter group whose entries all have the same fields: a heading, the entries, and a table of the fields."""
    names = ", ".join(f"`{entry}`" for entry in value)
    lines = [f"### `{name}`", "", f"{_sentence(summary(params))} Entries: {names}.", ""]
    lines += ["| field | meaning |", "| --- | --- |"]
    lines += [f"| `{field}` | {_cell(_sentence(text))} |" for field, text in _nested_meanings(params).items()]
    return "\n".join(lines)


def _nested_meanings(params: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Meanings of all fields by dotted name; a field that holds parameters is replaced by its own fields."""
    found: dict[str, str] = {}
    for field, text in meanings(params).items():
        kind = params.model_fields[field].annotation
        if isclass(kind) and issubclass(kind, BaseModel):
            found |= _nested_meanings(kind, f"{prefix}{field}.")
        else:
            found[f"{prefix}{field}"] = text
    return found


def _sentence(text: str) -> str:
    """The text with a full stop at its end and, if it starts with a word, with a capital letter."""
    first_word = text.split(maxsplit=1)[0] if text else ""
    if first_word.replace("-", "").rstrip(",;:").isalpha():
        text = text[0].upper() + text[1:]
    return text if not text or text.endswith(".") else f"{text}."


def single(name: str, value: Any) -> str:
    """A parameter that belongs to no group: a heading, its meaning and its default."""
    return f"### `{name}`\n\n{SINGLE[name]} Default: `{json.dumps(value)}`."


def page() -> str:
    """The whole page in Markdown.

    Raises:
        KeyError: a node reads a parameter group that conf/base does not have.
    """
    types: dict[str, type[BaseModel]] = typed_parameters() | LAB | LAB_ENTRIES
    parameters, notes, files = values_and_notes()
    sections: dict[str, list[str]] = {}
    for name in (*types, *SINGLE):
        sections.setdefault(files[name], []).append(name)
    order = {name: place for place, name in enumerate(files)}
    parts = [INTRODUCTION]
    for file, names in sorted(sections.items()):
        parts.append(f"## conf/base/{file}")
        for name in sorted(names, key=order.__getitem__):
            value = parameters
            for part in name.split("."):
                value = value[part]
            if name in SINGLE:
                parts.append(single(name, value))
            elif name in LAB_ENTRIES:
                parts.append(entries(name, types[name], value))
            else:
                parts.append(group(name, types[name], value, notes))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page to the path that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the page to write")
    parser.parse_args().path.write_text(page())


if __name__ == "__main__":
    main()
