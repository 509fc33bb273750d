import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from asterism import api
from asterism.evals.result import DataUsed, read_results
from asterism.reports.pictures import nearest_images, open_look
from asterism.reports.write import write_report
from tests.browser import CHROMIUM, measured, printed
from tests.train.tiny import pretrain, tiny_recipe

OF_EVERY_VIT = {
    "At a glance",
    "Training",
    "What the features see",
    "Segmentations",
    "Tracked masks",
    "Nearest images",
    "Aggregated similarity by layer",
    "Patch tokens in the plane",
    "Attention of a patch",
    "Attention of every head",
    "Views that the method trains on",
    "How it was made",
}
_ALONE = ("meta", "link", "img")


class Page(HTMLParser):
    """Collects what a page contains, and that every opened element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.columns: list[str] = []
        self.sentences: dict[str, str] = {}
        self.images = 0
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id"))
        if tag == "a":
            self.links.add(values["href"].removeprefix("#"))
        if tag == "img":
            self.images += 1
            assert values["src"].startswith("data:image/webp;base64,")
            assert values["alt"]
        if tag not in _ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        here = self.open[-1] if self.open else ""
        if here in ("h1", "h2", "h3"):
            self.headings.append(data)
        elif here == "th":
            self.columns.append(data)
        elif here == "p" and self.headings:
            self.sentences.setdefault(self.headings[-1], data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = {name: pretrain(tiny_recipe(name), folder / name) for name in ("dino", "mae", "stellar", "flsl", "cribo")}
    api.evaluate(made["dino"], protocols=["knn"], baselines=True)
    other = replace(read_results(made["dino"].path / "eval")[0], test=DataUsed("another set", 7, "f00"))
    content = json.loads((made["dino"].path / "eval" / "knn.json").read_text())
    content["test"] = {"name": other.test.name, "images": other.test.images, "fingerprint": other.test.fingerprint}
    (made["dino"].path / "eval" / "knn-another.json").write_text(json.dumps(content))
    return made


@pytest.fixture(scope="module")
def pages(runs):
    return {name: Page(write_report([run.path]).read_text()) for name, run in runs.items()}


@pytest.fixture(scope="module")
def compared(runs):
    return write_report([runs[name].path for name in ("dino", "stellar", "flsl")])


def test_the_page_shows_scores_curves_and_pictures_and_needs_nothing_else(runs, pages):
    path = runs["dino"].path / "report.html"
    text, page = path.read_text(), pages["dino"]
    assert not page.open
    assert {"Scores", *OF_EVERY_VIT} <= set(page.headings)
    assert page.headings.index("Scores") < page.headings.index("Training") < page.headings.index("Segmentations")
    assert page.images > 100
    assert page.links <= page.anchors
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:|#)|url\(', text)
    assert len(text) < 4e6
    assert {"this run", "untrained", "pixels"} <= set(page.columns)


def test_every_data_set_is_shown(runs, pages):
    text = (runs["dino"].path / "report.html").read_text()
    assert "40 images of scenes/test" in text
    assert "7 images of another set" in text


def test_what_only_some_methods_show(pages):
    assert {"visible patches", "reconstruction"} <= set(pages["mae"].columns)
    assert {"concepts", "reconstruction"} <= set(pages["stellar"].columns)
    assert pages["stellar"].columns.count("reconstruction") == 2, "one gallery in two parts"
    assert {"What is where", "Concept by concept"} <= set(pages["stellar"].headings)
    assert {"layer 0", "layer 2", "head 1"} <= set(pages["flsl"].columns)
    assert {"objects of crop 1", "objects of crop 2", "an object of crop 1", "nearest object in another image"} <= set(
        pages["cribo"].columns
    )
    assert "What the method makes of images" not in pages["dino"].headings


def test_all_that_was_logged_has_a_curve(runs, pages):
    text = (runs["cribo"].path / "report.html").read_text()
    assert 'aria-label="Bootstrapping ratio"' in text
    terms = [key.removeprefix("loss/") for key in runs["cribo"].metrics()[-1] if key.startswith("loss/")]
    assert len(terms) > 1
    assert all(f'aria-label="{term.replace("_", " ")}"' in text for term in terms)
    assert 'aria-label="bank filled"' in text


def test_several_runs_side_by_side(compared):
    assert compared.name == "report-dino-stellar-flsl.html"
    text = compared.read_text()
    page = Page(text)
    assert not page.open
    kinds = {"Components", "Attention", "Aggregated similarity", "Segmentations", "Tracked masks", "Nearest images"}
    assert {"Scores", "Training", "Concepts", "Reconstructions", "What differs", *kinds} <= set(page.headings)
    assert "method.name" in text
    assert "backbone.depth" not in text  # equal in both
    assert "stellar 1" in page.columns, "nearest images of each run"


def test_the_best_run_is_stressed(runs, tmp_path):
    for name, score in (("dino", 40.0), ("mae", 60.0)):
        content = json.loads((runs["dino"].path / "eval" / "knn.json").read_text())
        content["values"] = {"top1": score, "fid": score, "chosen_learning_rate": score}
        (runs[name].path / "eval").mkdir(exist_ok=True)
        (runs[name].path / "eval" / "zero.json").write_text(json.dumps(content))
    try:
        text = write_report([runs["dino"].path, runs["mae"].path]).read_text()
    finally:
        for name in ("dino", "mae"):
            (runs[name].path / "eval" / "zero.json").unlink()
    rows = {
        re.match(r"<th>([^<]*)", row).group(1): re.findall(r'class="best">([\d.]+)', row)
        for row in re.findall(r"<tr>(<th>k-NN .*?)</tr>", text)
    }
    assert rows["k-NN accuracy (%)"] == ["60.00"]
    assert rows["k-NN fid"] == ["40.00"]
    assert rows["k-NN chosen learning rate"] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to look at pages with")
@pytest.mark.parametrize(("kind", "width"), [("single", 390), ("single", 1280), ("compared", 390)])
def test_a_browser_shows_it_whole(runs, pages, compared, tmp_path, kind, width):
    seen = measured(compared if kind == "compared" else runs["dino"].path / "report.html", width, tmp_path)
    assert seen.console == []
    assert seen.found["width"] == width
    assert seen.found["overflow"] <= 0  # beside a scroll bar it is less
    assert seen.found["images"] > 50
    assert seen.found["broken"] == 0
    assert seen.found["cut"] == 0
    assert seen.found["font"] >= 13  # pixels, in tables


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to print pages with")
def test_paper_shows_what_is_folded_too(runs, pages, tmp_path):
    report = runs["stellar"].path / "report.html"
    unfolded = tmp_path / "unfolded.html"
    unfolded.write_text(report.read_text().replace("<details>", "<details open>"))
    sheets = [len(re.findall(rb"/Type /Page\b", printed(path, tmp_path))) for path in (report, unfolded)]
    assert 3 < sheets[0] == sheets[1] < 30


def test_a_run_whose_data_is_gone_still_has_a_report(runs, tmp_path):
    config = (runs["dino"].path / "config.yaml").read_text()
    (runs["dino"].path / "config.yaml").write_text(config.replace("scenes:size=16,count=40", str(tmp_path / "gone")))
    try:
        assert "No pictures" in write_report([runs["dino"].path]).read_text()
    finally:
        (runs["dino"].path / "config.yaml").write_text(config)


def test_no_image_is_its_own_neighbour(runs):
    run = runs["dino"]
    found = nearest_images(open_look(run, run.recipe), 3)
    assert found.places.shape == (len(found.queries), 3)
    assert not (found.places == torch.tensor(found.queries)[:, None]).any()
    assert (found.cosines.diff(dim=1) <= 1e-6).all()
