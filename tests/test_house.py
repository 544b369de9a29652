"""House rules that a machine can check: lengths of files, functions and the package, and numbers of parameters."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "neuroshard_pipeline"
FILES = sorted(PACKAGE.rglob("*.py"))
OTHER_FILES = sorted(path for folder in ("tests", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py"))

MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 40
MOST_LONG_FUNCTIONS = 5
MOST_PARAMETERS = 7
#: It rises only with a feature that nothing can be deleted for.
MOST_LINES_OF_THE_PACKAGE = 42_360


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of parameters, without `self`, `cls`, `*args` and `**kwargs`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_are_short_and_functions_have_few_parameters(path):
    crowded = [function.name for function in functions(path) if num_parameters(function) > MOST_PARAMETERS]
    assert num_lines(path) <= MOST_LINES_OF_A_FILE
    assert not crowded, f"group parameters of these functions in a dataclass: {crowded}"


@pytest.mark.parametrize("path", OTHER_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_outside_the_package_are_short(path):
    assert num_lines(path) <= MOST_LINES_OF_A_FILE


def test_few_functions_are_long():
    long = [
        f"{path.relative_to(PACKAGE)}: {function.name}"
        for path in FILES
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]
    assert len(long) <= MOST_LONG_FUNCTIONS, long


def test_the_package_stays_within_its_size():
    assert sum(map(num_lines, FILES)) <= MOST_LINES_OF_THE_PACKAGE
