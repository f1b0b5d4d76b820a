"""The demo's report shows what the survey found, to everyone, and runs nothing that a file name may hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.embedded.demo.charts import Bar, bars, shorten, stack, ticks
from flowforge.embedded.demo.figures import Content, Counts, Function, Package, Survey, Unparsed
from flowforge.embedded.demo.report import Step, render

SURVEY = Survey(
    totals=Counts(1790, 31_525_224, 858_237, 617_424, 58_170, 55_563, 126_090, 990, 58_754, 13_116),
    longest=[Function("test_factory", "test/test_abc.py", 15, 671), Function("_parse", "re/_parser.py", 516, 386)],
    duplicates=[Content(1200, 40, ["a/one.py", "b/one.py", "c/one.py"]), Content(58, 3, ["a/two.py", "b/two.py"])],
    packages=[Package("test/", 464_677), *(Package(f"module_{number}.py", 100 - number) for number in range(20))],
    unparsed=[Unparsed("lib2to3/bad.py", 990, "invalid syntax (line 3)")],
)
TOOK = [
    Step("list", 0.0, 0.031, worker="one"),
    Step("read 1", 0.5, 2.0, worker="one"),
    Step("read 2", 0.5, 3.5, attempt=2, worker="two"),
]
VOID = {"meta", "line", "rect", "br"}


class Page(HTMLParser):
    """Collects the tags and the text of a page, and finds tags that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.opened: list[str] = []
        self.misplaced: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.opened or self.opened.pop() != tag):
            self.misplaced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(survey: Survey = SURVEY, took: list[Step] = TOOK) -> str:
    return render(survey, title="A survey", took=took)


@pytest.mark.parametrize(
    "said",
    [
        "1,790 Python files in 21 packages and modules, 31.5 MB",
        "617,424 lines, 71.9%",
        "58,754",
        "13,116",
        "464,677",
        "6 others",
        "test_factory",
        "re/_parser.py:516",
        "2 groups of equal files; to keep one of each would save 2.5 kB.",
        "and 2 more",
        "lib2to3/bad.py",
        "invalid syntax (line 3)",
        "3 attempts on 2 workers did 5.5 s of work in 4.0 s: 1.4 at a time. 1 was a repeat.",
        "31 ms · one",
        "3.5 s · two · attempt 2",
    ],
)
def test_the_page_says_what_was_found(said: str) -> None:
    assert said in Page(page_of()).text


@pytest.mark.parametrize("took", [TOOK, []])
@pytest.mark.parametrize("survey", [SURVEY, Survey(Counts(), [], [], [], [])])
def test_every_tag_is_closed_in_order(survey: Survey, took: list[Step]) -> None:
    page = Page(page_of(survey, took))

    assert ([], []) == (page.opened, page.misplaced)


def test_an_empty_survey_says_so() -> None:
    text = Page(page_of(Survey(Counts(), [], [], [], []), [])).text

    assert "0 Python files in 0 packages and modules, 0 bytes" in text
    assert "No two files hold the same bytes." in text
    assert "Every file was read and parsed." in text
    assert "No attempts were recorded." in text


def test_the_page_needs_nothing_else() -> None:
    page = page_of()

    assert not {"script", "link", "img", "iframe"} & set(Page(page).tags)
    assert not [name for name in Page(page).attributes if name.startswith("on") or name in {"src", "href"}]
    assert not re.search(r"https?:|url\(|@import", page)


def test_nothing_from_outside_becomes_a_tag() -> None:
    evil = "<script>alert('\"&$title')</script>.py"
    survey = Survey(
        totals=SURVEY.totals,
        longest=[Function(evil, evil, 1, 9)],
        duplicates=[Content(9, 1, [evil, evil, evil])],
        packages=[Package(evil, 9)],
        unparsed=[Unparsed(evil, 9, evil)],
    )

    page = render(survey, title=evil, took=[Step(evil, 0, 1, worker=evil)])

    assert "script" not in Page(page).tags
    assert evil not in page
    assert Page(page).text.count(evil) >= 8
    assert set(Page(page_of()).tags) >= set(Page(page).tags)


@given(name=st.text())
def test_no_name_breaks_the_page(name: str) -> None:
    survey = Survey(SURVEY.totals, [Function(name, name, 1, 1)], [], [Package(name, 1)], [])

    page = Page(render(survey, title=name, took=[Step(name, 0, 1, worker=name)]))

    assert ([], []) == (page.opened, page.misplaced)


def test_charts_are_said_to_those_who_cannot_see_them() -> None:
    charts = re.findall(r'<svg role="img" aria-label="([^"]*)"', page_of())

    assert ["Lines by kind", "Lines by package", "Attempts over time"] == [said.split(".")[0] for said in charts]
    assert "test/: 464,677; module_0.py: 100" in charts[1]


def test_a_bar_is_as_long_as_its_value() -> None:
    chart = bars([Bar("a", 200, "200"), Bar("b", 50, "50")], name="Lines")

    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)%"', chart)]
    assert widths[0] == 4 * widths[1]


def test_the_parts_of_a_whole_fill_it_without_gaps() -> None:
    chart = stack([Bar("a", 1, "1"), Bar("b", 3, "3")], name="Kinds")

    spans = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)%".*?width="([\d.]+)%"', chart)]
    assert [(0, 25), (25, 75)] == spans


def test_a_very_short_bar_can_still_be_seen() -> None:
    chart = bars([Bar("a", 1_000_000, ""), Bar("b", 1, "")], name="Lines")

    assert "0.00%" not in re.findall(r'width="([\d.]+%)"', chart)


@given(top=st.floats(1e-6, 1e12))
def test_ticks_are_few_even_and_within(top: float) -> None:
    values = ticks(top)

    steps = [after - before for before, after in pairwise(values)]
    assert 0 == values[0]
    assert top / 2 <= values[-1] <= top * (1 + 1e-9)
    assert 2 <= len(values) <= 7
    assert max(steps) - min(steps) <= top * 1e-9


def test_ticks_of_whole_things_are_whole() -> None:
    assert [0, 1, 2, 3] == ticks(3, least=1)
    assert [0, 0.5, 1, 1.5, 2, 2.5, 3] == ticks(3)


@given(text=st.text(max_size=60), most=st.integers(3, 40))
def test_a_shortened_text_keeps_its_ends(text: str, most: int) -> None:
    short = shorten(text, most)

    assert len(short) <= max(most, 3)
    assert text[:1] == short[:1]
    assert text[-1:] == short[-1:]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out_from_the_card(scheme: str) -> None:
    colours = palette(scheme)
    card = colours.pop("card")

    assert 4.5 <= min(contrast(colours[name], card) for name in ("ink", "soft"))
    assert 3.0 <= min(contrast(colours[name], card) for name in colours if name not in {"page", "rule"})


def palette(scheme: str) -> dict[str, str]:
    page = files("flowforge.embedded.demo").joinpath("report.html").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    return dict(re.findall(r"--(\w+): #(\w{6})", light if scheme == "light" else dark))


def contrast(one: str, other: str) -> float:
    """Compute the contrast ratio of WCAG 2: 3 is enough for graphics, 4.5 for text."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(part * value for part, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
