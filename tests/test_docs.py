"""The documentation builds strictly, and what it names exists: files, commands, pipelines, parameters, datasets."""

import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from conftest import bootstrap
from kedro.config import OmegaConfigLoader
from kedro.framework.project import pipelines

import neuroshard_pipeline as ns

ROOT = Path(__file__).resolve().parents[1]
ZENSICAL = Path(sys.executable).parent / "zensical"
#: Written by `make docs`, not committed.
GENERATED = ROOT / "docs" / "reference" / "parameters.md"
#: One page per package. Such a page names modules, whose docstrings the build inserts, and has no text of its own.
PACKAGES = ROOT / "docs" / "reference" / "packages"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path != GENERATED and path.parent != PACKAGES),
    PACKAGES / "index.md",
]

LINK = re.compile(r"\]\(([^)\s]+)\)")
MAKE = re.compile(r"\bmake ([a-z][\w-]*)")
PIPELINE = re.compile(r"--pipelines? ([\w,]+)")
ENVIRONMENT = re.compile(r"--env (\w+)")
PARAMETERS = re.compile(r"--params ([\w.]+=\S+)")
#: The first parts of the names of parameters and datasets.
STAGES = "|".join(
    {
        name.partition(".")[0]
        for kind in ("parameters", "catalog")
        for path in (ROOT / "conf" / "base").glob(f"{kind}*.yml")
        for name in yaml.safe_load(path.read_text())
        if kind == "parameters" or "." in name
    }
)
#: In backticks: a parameter or a dataset of these stages, perhaps with a value.
DOTTED = re.compile(rf"`((?:{STAGES})\.[\w.]+)(?:=[^`]*)?`")
#: What a browser would fetch when it opens a page or a style sheet. For elements of some classes, the scripts of the
#: theme fetch more scripts, or facts of the repository.
FETCHED = re.compile(
    r"""<[^>]*\s(?:src|poster|data)=["']?(?:https?:)?//[^>]*|<[^>]*\ssrcset=["']?[^"'>]*//[^>]*|"""
    r"""<link(?![^>]*\brel=["']?canonical)[^>]*\shref=["']?(?:https?:)?//[^>]*|"""
    r"""url\(\s*["']?(?:https?:)?//[^)]*|@import\s*["'](?:https?:)?//[^;]*|"""
    r"""<[^>]*\sclass=["']?[^"'>]*\b(?:mermaid|glightbox)\b[^>]*|<[^>]*\sdata-md-component=["']?source\b[^>]*"""
)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_of(page: Path) -> str:
    """Everything in a page that is set as code."""
    return "\n".join(CODE.findall(page.read_text()))


@cache
def configuration(kind: str) -> dict:
    bootstrap()
    return OmegaConfigLoader(str(ROOT / "conf"), base_env="base", default_run_env="base")[kind]


@cache
def runtime_parameters() -> set[str]:
    return set(yaml.safe_load((ROOT / "conf" / "base" / "globals.yml").read_text()))


def has_parameter(name: str) -> bool:
    """Whether conf/base has a parameter of this dotted name. An empty mapping has every key: users choose them."""
    value = configuration("parameters")
    for part in name.split("."):
        if value == {}:
            return True
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


@pytest.fixture(scope="module")
def parameter_reference():
    spec = importlib.util.spec_from_file_location("parameter_reference", ROOT / "scripts" / "parameter_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference_page(parameter_reference) -> str:
    return parameter_reference.page()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.fixture(scope="module")
def site(tmp_path_factory, reference_page) -> Path:
    """The site, built strictly: a broken link, anchor or Python name ends the build."""
    root = tmp_path_factory.mktemp("site")
    for name in ("README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, root)
    # For speed, signatures stay in one line; otherwise each of them would be formatted by a process of its own.
    options = "[project.plugins.mkdocstrings.handlers.python.options]\n"
    given = (ROOT / "zensical.toml").read_text()
    assert options in given
    (root / "zensical.toml").write_text(given.replace(options, f"{options}line_length = 100000\n"))
    shutil.copytree(ROOT / "docs", root / "docs")
    (root / "src").symlink_to(ROOT / "src")
    (root / "docs" / "reference" / "parameters.md").write_text(reference_page)
    built = subprocess.run(
        [ZENSICAL, "build", "--strict"], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return root / "site"


def test_site_builds_strictly(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()


def test_site_loads_nothing_from_the_network(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert {path.suffix for path in files} == {".html", ".css", ".svg"}
    for path in files:
        assert not FETCHED.findall(path.read_text()), f"{path.name} fetches from the network"


@pytest.mark.parametrize(
    "text",
    [
        '<script async src="https://a.com/b.js">',
        "<img alt=x src=//a.com/b.png>",
        '<source srcset="b.png 1x, https://a.com/b.png 2x">',
        '<link href="https://a.com" rel="preconnect">',
        "@font-face { src: url( 'https://a.com/b.woff2') }",
        '@import "https://a.com/b.css";',
        '<pre class="mermaid">',
    ],
)
def test_what_a_browser_would_fetch_is_recognised(text):
    assert FETCHED.search(text)
    assert not FETCHED.search(text.replace("https:", "").replace("//a.com", "a").replace("mermaid", "text"))


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "zensical.toml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f'"{page.relative_to(ROOT / "docs")}"' in navigation, f"add {page.name} to nav in zensical.toml"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_and_images_exist(page):
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        path = (page.parent / target.split("#")[0]).resolve()
        assert path.exists() or path == GENERATED, f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    benches = next(line for line in makefile.splitlines() if line.startswith("BENCHES :="))
    targets = {*phony.split()[1:], *benches.split()[2:]}
    named = set(MAKE.findall(code_of(page)))
    assert named <= targets, f"{name_of(page)} names unknown targets"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pipelines_and_environments_exist(page):
    bootstrap()
    code = code_of(page)
    named = {name for names in PIPELINE.findall(code) for name in names.split(",")}
    assert named <= set(pipelines), f"{name_of(page)} names unknown pipelines"
    for environment in ENVIRONMENT.findall(code):
        assert (ROOT / "conf" / environment).is_dir(), f"{name_of(page)} names environment {environment}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_parameters_of_commands_exist(page):
    for assignments in PARAMETERS.findall(code_of(page)):
        for assignment in assignments.rstrip("`").split(","):
            name = assignment.split("=")[0]
            known = name in runtime_parameters() or has_parameter(name)
            assert known, f"{name_of(page)} sets {name}, which conf/base does not have"


# The changelog also names parameters that were removed.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_dotted_names_are_parameters_or_datasets(page):
    catalog = configuration("catalog")
    for name in DOTTED.findall(page.read_text()):
        assert name in catalog or has_parameter(name), f"{name_of(page)} names {name}"


def test_every_parameter_of_a_group_has_a_meaning_and_its_default(parameter_reference, reference_page):
    """Groups whose entries all have the same fields have meanings, but no defaults."""
    documented = documented_groups(reference_page)
    groups = parameter_reference.typed_parameters() | parameter_reference.LAB
    for name, params in groups.items():
        values, rows = value_of(name), documented[name]
        assert list(rows) == list(params.model_fields), name
        for field, (default, meaning) in rows.items():
            assert meaning.split("<br>")[0], f"add {name}.{field} to the Attributes of its type"
            value = values[field] if field in values else params.model_fields[field].default
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            assert default in (f"`{text}`", f"{len(text) > 60 and len(value)} entries"), f"{name}.{field}"
    for name, params in parameter_reference.LAB_ENTRIES.items():
        assert {field.partition(".")[0] for field in documented[name]} == set(params.model_fields), name


def documented_groups(page: str) -> dict[str, dict[str, list[str]]]:
    """For every group on the page, its parameters or fields and the other cells of their rows."""
    found = {}
    for section in re.split("^### ", page, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
        name = section.partition("\n")[0].strip("`")
        found[name] = {field: re.split(r"(?<!\\) \| ", cells) for field, cells in rows}
    return found


def value_of(name: str) -> dict:
    value = configuration("parameters")
    for part in name.split("."):
        value = value[part]
    return value


def test_every_parameter_of_conf_is_in_the_reference(parameter_reference, reference_page):
    """A group that no node reads, or whose type is not checked, would be left out of the page."""
    documented = documented_groups(reference_page)

    def undocumented(name: str, value: object) -> set[str]:
        if name in documented:
            return set()
        if not isinstance(value, dict):
            return {name}
        return {found for key, part in value.items() for found in undocumented(f"{name}.{key}", part)}

    missing = {found for name, value in configuration("parameters").items() for found in undocumented(name, value)}
    assert not missing
    for name, meaning in parameter_reference.SINGLE.items():
        assert f"### `{name}`\n\n{meaning} Default: `{json.dumps(value_of(name))}`." in reference_page


def test_public_names_are_documented():
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    named = re.findall(r"^::: neuroshard_pipeline\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(ns.__all__)


def test_packages_are_documented():
    """All packages have a page, except `datasets` and `pipelines`, which connect the others with Kedro."""
    packages = {path.parent.name for path in (ROOT / "src" / "neuroshard_pipeline").glob("*/__init__.py")}
    pages = {path.stem for path in PACKAGES.glob("*.md")}
    assert pages - {"index"} == packages - {"pipelines", "datasets"}


def test_layers_of_the_contributing_page_are_those_of_import_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    checked = [{name.strip().removeprefix("neuroshard_pipeline.") for name in layer.split("|")} for layer in layers]
    rows = re.findall(r"^\| (\d+)[^|]*\| ([^|]+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    documented: dict[int, set[str]] = {}
    for number, packages in rows:
        documented.setdefault(int(number), set()).update(re.findall(r"`(\w+)(?:/|\.py)`", packages))
    assert [documented[number] for number in sorted(documented, reverse=True)] == checked


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_names_exist(page):
    code = code_of(page)
    assert set(re.findall(r"\bns\.(\w+)", code)) <= set(ns.__all__), f"{name_of(page)} names unknown parts of the API"
    for module, names in re.findall(r"from (neuroshard_pipeline[\w.]*) import ([\w, ]+)", code):
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.strip()), f"{module} has no {name}"
