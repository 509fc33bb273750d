import base64
import io
import re

import torch
from PIL import Image

from asterism.viz import page
from asterism.viz.page import Section


def embedded(html: str) -> list[Image.Image]:
    return [
        Image.open(io.BytesIO(base64.b64decode(data)))
        for data in re.findall(r'src="data:image/\w+;base64,([^"]+)"', html)
    ]


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


def test_few_columns_are_placed_side_by_side() -> None:
    pictures = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    narrow, wide = (page.gallery({str(i): pictures for i in range(columns)}) for columns in (2, 5))
    assert (narrow.count("<table"), narrow.count("<tr>"), narrow.count("<img")) == (3, 3 + 5, 10)
    assert (wide.count("<table"), wide.count("<tr>"), wide.count("<img")) == (1, 1 + 5, 25)
    assert 'alt="1, image 5"' in narrow


def test_pictures_are_large_enough() -> None:
    small, large, wide = (torch.zeros(3, *size, dtype=torch.uint8) for size in ((10, 10), (600, 600), (300, 600)))
    assert [image.size for image in embedded("".join(page.picture(p, "x") for p in (small, large, wide)))] == [
        (160, 160), (256, 256), (512, 256),
    ]  # fmt: skip


def test_the_best_cells_are_highlighted() -> None:
    html = page.table(["", "a", "b"], [["x", "1", "2"], ["y<", "3", "4"]], [{2}])
    assert re.findall(r'<td class="best">(\w+)</td>', html) == ["2"]
    assert "<th>y&lt;</th><td>3</td><td>4</td>" in html


def test_a_legend_names_colours() -> None:
    assert 'fill="rgb(1, 2, 3)"/></svg>tree' in page.legend({"tree": (1, 2, 3)})
    assert page.legend({}) == ""
