"""House rules that a machine can check: lengths of files, functions and the package, and numbers of parameters."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "neuroshard_pipeline"
FILES = sorted(PACKAGE.rglob("*.py"))
OTHER_FILES = sorted(path for folder in ("tests", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py"))

MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 40
MOST_LONG_FUNCTIONS = 5
MOST_PARAMETERS = 7
#: It rises only with a feature that nothing can be deleted for.
MOST_LINES_OF_THE_PACKAGE = 41_000


@cache
def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of parameters, without `self`, `cls`, `*args` and `**kwargs`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_files_are_short_and_functions_have_few_parameters():
    assert not {path: num_lines(path) for path in (*FILES, *OTHER_FILES) if num_lines(path) > MOST_LINES_OF_A_FILE}
    crowded = {path: f.name for path in FILES for f in functions(path) if num_parameters(f) > MOST_PARAMETERS}
    assert not crowded, f"group parameters of these functions in a dataclass: {crowded}"


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
