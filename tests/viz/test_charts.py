import re
from xml.etree import ElementTree

import torch

from asterism.viz.charts import dot_cloud, line_chart


def points(chart: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline[^>]*points="([^"]*)"', chart)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]


def test_a_chart_is_well_formed_and_has_the_right_orientation():
    chart = line_chart("Loss & more", {"a": [(0, 1.0), (10, 3.0)], "b": [(0, 2.0), (10, 0.5)]})
    ElementTree.fromstring(chart)
    rising, falling = points(chart)
    assert rising[1][0] > rising[0][0]
    assert rising[1][1] < rising[0][1]  # the y axis of SVG points down
    assert falling[1][1] > falling[0][1]
    assert "Loss &amp; more" in chart


def test_constant_missing_and_broken_values():
    assert line_chart("x", {}) == ""
    assert line_chart("x", {"a": [(0, float("nan"))]}) == ""
    ElementTree.fromstring(line_chart("x", {"a": [(1, 5.0), (2, 5.0)]}))
    assert len(points(line_chart("x", {"a": [(0, 1.0), (1, float("inf")), (2, 2.0)]}))[0]) == 2


def test_dots_keep_their_colours_and_proportions():
    colors = torch.tensor([[255, 0, 0], [0, 0, 255], [1, 2, 3]], dtype=torch.uint8)
    cloud = dot_cloud("a < b", torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 5.0]]), colors)
    ElementTree.fromstring(cloud)
    dots = re.findall(r'cx="(\d+)" cy="(\d+)" r="\d+" fill="#(\w+)"', cloud)
    (x1, y1, red), (x2, y2, blue), (x3, y3, _) = ((int(x), int(y), color) for x, y, color in dots)
    assert (red, blue) == ("ff0000", "0000ff")
    assert y1 == y2
    assert x1 == x3
    assert abs((x2 - x1) - 2 * (y3 - y1)) <= 1
    assert 0 < x1 < x2 < 300
