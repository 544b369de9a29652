import dataclasses
import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from neuroshard_pipeline.report import FIGURES, render_report, report_page
from report.conftest import SCENARIOS, titled_axes

_VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects what the tests ask for and refuses tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.scripts, self.words = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[key] for key in ("src", "href") if key in values]
        if tag == "script":
            self.scripts.append([values.get("type"), ""])
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(inputs, figures):
    """The report of a run whose figures are drawn already, because drawing takes most of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "draw_figures", lambda _: figures)
        return render_report(inputs)["report"]


@pytest.fixture(scope="module")
def page_text(built_inputs, drawn):
    return page_of(built_inputs, drawn)


@pytest.fixture(scope="module")
def page(page_text):
    return Page(page_text)


def css_of(page_text):
    return re.search(r"<style>(.*?)</style>", page_text, re.DOTALL).group(1)


def test_page_is_self_contained(page, page_text):
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    css_and_prose = css_of(page_text) + page.text
    assert "http" not in css_and_prose


def test_plotly_is_inlined_once_and_the_page_stays_small(page_text):
    library = resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8")
    assert page_text.count(library[:80]) == 1
    assert len(page_text.encode()) < len(library.encode()) + 600_000


def test_style_loads_nothing(page_text):
    style = css_of(page_text)
    assert "url(" not in style
    assert "@import" not in style


def test_links_of_the_contents_lead_somewhere(page):
    targets = [address[1:] for address in page.addresses if address.startswith("#")]
    assert len(targets) == 6
    assert set(targets) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_every_figure_has_its_data_and_a_caption(page_text, page):
    figures = re.findall(r"<figure id=\"(\w+)\">(.*?)</figure>", page_text, re.DOTALL)
    assert len(figures) == 6
    for name, body in figures:
        caption = re.search(r"<figcaption>(.*?)</figcaption>", body, re.DOTALL).group(1)
        assert len(caption.split()) > 12, name
        assert f"{name}-data" in page.ids
    specs = [json.loads(body) for kind, body in page.scripts if kind == "application/json"]
    assert all(spec["data"] and "title" not in spec["layout"] for spec in specs)


def test_a_page_without_tiers_does_not_draw_them(page):
    assert "tiers" not in page.ids


def test_numbers_of_the_run_are_on_the_page(page, built_inputs):
    assert f"{built_inputs.summary['sharders']['neuroshard']['mean_measured_step_ms']:.3f}" in page.text
    assert "6.1 %" in page.text  # held-out error
    assert "AMD EPYC" in page.text
    assert built_inputs.lineage["run_id"] in page.text
    assert "out of memory: 3.2 GiB asked of an arena of 2 GiB (1 row)" in page.text


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A run of `SCENARIOS`: its figures, and the page that shows them."""

    scenario: str
    figures: dict
    page: Page


@pytest.fixture(scope="module", params=SCENARIOS)
def rendered(request, built_scenario, drawn, page_text):
    """The figures and the page of every run, one after the other."""
    is_drawn = request.param == "all measured"
    shown = {**drawn, "report": page_text} if is_drawn else render_report(built_scenario(request.param))
    return Rendered(request.param, {name: shown[name] for name in shown if name != "report"}, Page(shown["report"]))


def test_no_page_shows_a_missing_value(rendered):
    assert not re.search(r"\b(nan|None|undefined)\b", rendered.page.text)


def test_every_figure_of_every_run_has_a_title_axes_and_a_height(rendered):
    assert list(rendered.figures) == list(FIGURES)
    for name, figure in rendered.figures.items():
        assert figure.layout.title.text, name
        assert titled_axes(figure, "x") or figure.layout.annotations, name
        assert figure.layout.height, name
        json.loads(figure.to_json(), parse_constant=pytest.fail)  # NaN is not valid JSON


def test_a_page_says_in_words_that_no_task_is_common(rendered):
    without_common = rendered.scenario == "no plan at all"
    assert ("No task has a cost of every sharder, so" in rendered.page.text) == without_common
    if rendered.scenario == "no task solved by all":
        assert "every sharder but random solved" in rendered.page.text


def test_names_cannot_break_out_of_the_page(inputs):
    evil = "</script><script>alert(1)</script>"
    inputs.plans["table"] = inputs.plans["table"].replace("t_000", evil)
    inputs.sharding_tasks["table"] = inputs.sharding_tasks["table"].replace("t_000", evil)
    changed = dataclasses.replace(inputs, hardware={"device": evil, evil: 1})
    text = render_report(changed)["report"]
    assert evil not in text
    assert sum(kind is None for kind, _ in Page(text).scripts) == 2


def test_words_between_backticks_are_code_and_the_rest_is_escaped(built_inputs, drawn, monkeypatch):
    monkeypatch.setattr(report_page.sharder_summary, "cost_note", lambda _: "a < b, only `truth` & `drift` differ.")
    text = page_of(built_inputs, drawn)
    assert "a &lt; b, only <code>truth</code> &amp; <code>drift</code> differ." in text


def test_the_page_of_a_busy_machine_says_so_first(built_inputs, drawn):
    quiet = {**built_inputs.hardware, "other_programs": {"compute": 0.01, "comm": None}}
    busy = {**built_inputs.hardware, "other_programs": {"compute": 0.66, "comm": 0.74}}
    runs = [dataclasses.replace(built_inputs, hardware=hardware) for hardware in (quiet, busy)]
    texts = [Page(page_of(run, drawn)).text for run in runs]
    told = (
        "other programs used 66% of its cores while lookups were measured and 74% of its cores while collectives were"
    )
    assert [told in text for text in texts] == [False, True]
    assert texts[1].index("make clean") < texts[1].index("Result")
