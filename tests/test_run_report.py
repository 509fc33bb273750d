import re
from html.parser import HTMLParser

import pytest

from asterism import api
from asterism.errors import UserError
from asterism.run_report import write_report
from asterism.train.loop import pretrain
from tests.train.tiny import tiny_recipe


class Page(HTMLParser):
    """Collects what a page contains, and that every opened element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.images = 0
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.images += 1
            assert dict(attributes)["src"].startswith("data:image/png;base64,")
            assert dict(attributes)["alt"]
        elif tag not in ("meta", "link", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = [pretrain(tiny_recipe(name), folder / name) for name in ("dino", "mae")]
    api.evaluate(made[0], protocols=["knn"], baselines=True)
    return made


def test_the_page_shows_scores_curves_and_pictures_and_needs_nothing_else(runs):
    path = write_report([runs[0].path])
    assert path == runs[0].path / "report.html"
    text = path.read_text()
    page = Page(text)
    assert not page.open
    assert {"Scores", "Training", "What the features see", "Nearest images"} <= set(page.headings)
    assert page.images > 20
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "untrained" in text
    assert "pixels" in text


def test_reconstructions_of_a_method_that_makes_them(runs):
    text = write_report([runs[1].path]).read_text()
    assert "visible patches" in text
    assert "reconstruction" in text


def test_several_runs_side_by_side(runs):
    path = write_report([run.path for run in runs])
    assert path.name == "report-dino-mae.html"
    text = path.read_text()
    page = Page(text)
    assert {"Scores", "Training", "What differs"} <= set(page.headings)
    assert "method.name" in text
    assert "backbone.depth" not in text  # equal in both


def test_a_run_whose_data_is_gone_still_has_a_report(runs, tmp_path):
    config = (runs[0].path / "config.yaml").read_text()
    (runs[0].path / "config.yaml").write_text(config.replace("scenes:size=16,count=40", str(tmp_path / "gone")))
    try:
        assert "No pictures" in write_report([runs[0].path]).read_text()
    finally:
        (runs[0].path / "config.yaml").write_text(config)


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        write_report([tmp_path])
