"""The report as a page."""

from html.parser import HTMLParser

import pytest
import torch

import speckey
from tests.helpers import compiled

HOSTILE = "</text><script>alert(1)</script>\" onload='x' &amp; <b>"


class Elements(HTMLParser):
    """All elements and attributes of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.text, self.open = set(), set(), "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


KNOWN = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "pre", "div"),
    *("table", "tr", "th", "td", "svg", "path", "rect", "text"),
}


def page_of(jfn, tmp_path):
    path = tmp_path / "report.html"
    speckey.explain(jfn).to_html(path)
    return path.read_text(encoding="utf-8")


def test_the_page_is_complete_and_loads_nothing(tmp_path):
    def asks(x):
        return x * 2 if x.shape[0] > 16 else x + 1

    jfn = compiled(asks)
    for n in (3, 20):
        jfn(torch.ones(n))
    page = page_of(jfn, tmp_path)
    elements = Elements(page)
    assert not elements.open
    assert elements.names == KNOWN
    assert not elements.attributes & {"src", "href", "onload", "onclick"}
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    for text in (
        "x.shape[0] > 16?",
        "[1] symbolic, 0 hits",
        "`x.shape[0] > 16` was False, is True now",
        "test_html.py:",
    ):
        assert text in elements.text


@pytest.mark.parametrize("text", [HOSTILE, "]]>", "<!--", "a\nb"])
def test_hostile_names_and_strings_stay_text(tmp_path, text):
    def reads(x, words=None):
        return x * 2 if x.shape[0] > 4 else x

    reads.__name__ = text
    jfn = compiled(reads)
    for n in (3, 5):
        jfn(torch.ones(n))
    for words in ({text: text}, {text: "<i>"}, text, "<i>"):
        jfn(torch.ones(3), words)
    elements = Elements(page_of(jfn, tmp_path))
    assert not elements.open
    assert elements.names <= KNOWN
    assert not elements.attributes & {"onload", "src", "href"}
    assert f"is {words!r} now" in elements.text
    assert repr(text)[1:-1][:40] in elements.text


def test_a_page_before_the_first_call(tmp_path):
    page = page_of(compiled(lambda x: x), tmp_path)
    assert "Not called yet." in page
    assert not Elements(page).open


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        speckey.explain(compiled(lambda x: x)).to_html(tmp_path / "nowhere" / "report.html")
