"""The shipped numbers of the lab: the section `lab` of conf/base/parameters_lab.yml.

`neuroshard_pipeline` ships that file (a symbolic link beside its own `__init__.py`), so that Python and `kedro run`
use the same numbers.
"""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def lab_values() -> dict[str, Any]:
    """The section `lab` of the shipped parameters_lab.yml, as plain values."""
    text = files("neuroshard_pipeline").joinpath("parameters_lab.yml").read_text(encoding="utf-8")
    section: dict[str, Any] = yaml.safe_load(text)["lab"]
    return section
