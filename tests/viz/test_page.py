import re

from asterism.viz import page
from asterism.viz.page import Section


def test_sections_can_be_folded_and_linked() -> None:
    html = page.page(
        "t", "s", [Section("A & b", "<p>x</p>"), Section("Second", "y", "why", folded=True), Section("C", "z")]
    )
    assert '<a href="#a-b">A &amp; b</a>' in html
    assert '<div id="a-b">' in html
    assert html.count("<details open>") == 2
    assert "<details><summary><h2>Second</h2>" in html


def test_a_section_without_a_body_is_omitted() -> None:
    html = page.page("t", "s", [Section("Empty", ""), Section("Full", "x")])
    assert "Empty" not in html
    assert "<nav" not in html, "two sections need no contents"


def test_the_best_cells_are_highlighted() -> None:
    html = page.table(["", "a", "b"], [["x", "1", "2"], ["y<", "3", "4"]], [{2}])
    assert re.findall(r'<td class="best">(\w+)</td>', html) == ["2"]
    assert "<th>y&lt;</th><td>3</td><td>4</td>" in html
