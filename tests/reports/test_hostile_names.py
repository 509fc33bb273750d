"""Pages about things whose names are attacks: nothing runs, neither with the page's policy nor without it."""

import json
import re
from pathlib import Path

import pytest
import torch

from asterism import api
from asterism.extras.studies.compare import plan_study, write_comparison
from asterism.tools.search import SheetPicture, write_sheet
from asterism.viz import charts, page
from asterism.viz.page import Section, Tile
from tests.browser import CHROMIUM, visited, without_policy
from tests.concept_samples import concept_encoder
from tests.evals.samples import write_colours
from tests.train.tiny import pretrain, tiny_recipe

MARK = "document.documentElement.dataset.ran=1"
NAMES = [  # of files, so without "/"
    f"<img src=x onerror={MARK}>",
    f'"><svg onload={MARK}>',
    f"' onfocus={MARK} autofocus tabindex=1 x='",
    f"<details open ontoggle={MARK}>",
    f"&lt;img src=x onerror={MARK}&gt;",
]
TEXTS = [
    *NAMES,
    f"<script>{MARK}</script>",
    f"</title></style></pre><script>{MARK}</script>",
    f"--><script>{MARK}</script><!--",
    f"]]></svg><script>{MARK}</script>",
    f'<iframe srcdoc="<script>parent.{MARK}</script>"></iframe>',
    f'<a href="javascript:{MARK}" autofocus>x</a><base href="https://attacker.example/">',
    '<meta http-equiv="refresh" content="0;url=https://attacker.example/">',
    '<form action="https://attacker.example/"><input type=submit>',
    "<style>body{display:none}</style><link rel=stylesheet href=https://attacker.example/x.css>",
]
ALL = " ".join(TEXTS)
GREY = torch.full((3, 16, 16), 128, dtype=torch.uint8)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to try attacks in")


def is_safe(path: Path, folder: Path) -> None:
    """Nothing of the attacks is part of the document, and nothing runs."""
    text = path.read_text()
    assert text.count("Content-Security-Policy") == 1
    elements = set(re.findall(r"<([a-z]+)", text))
    assert not elements & {"script", "iframe", "base", "form", "input", "object", "embed"}
    assert not re.search(r"<[^>]*\s(on\w+|style|srcdoc)=", re.sub(r'"[^"]*"', '""', text))
    if CHROMIUM is not None:
        for shown in (path, without_policy(path, folder / "bare.html")):
            seen = visited(shown, folder)
            assert "data-ran" not in seen.document
            assert seen.console == []


@needs_browser
def test_the_policy_stops_what_would_not_be_escaped(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page.page("a", "b", [f"{ALL}<p style='color:red'>x</p>"]))
    seen = visited(path, tmp_path)
    assert "data-ran" not in seen.document
    assert any("Content Security Policy" in line for line in seen.console)


def test_every_part_of_a_page_escapes(tmp_path: Path) -> None:
    parts = [
        page.lead(ALL),
        page.note(ALL),
        page.heading(ALL),
        page.table([ALL, ALL], [[ALL, ALL]], [{1}]),
        page.facts({ALL: ALL}),
        page.gallery({ALL: GREY[None]}),
        page.legend({ALL: (1, 2, 3)}),
        page.tiles([Tile(GREY, ALL)]),
        page.folded(ALL, page.text(ALL)),
        page.picture(GREY, ALL),
        charts.line_chart(ALL, {ALL: [(0, 1.0), (1, 2.0)], "b": [(0, 1.0)]}, (ALL, 1.0)),
        charts.dot_cloud(ALL, torch.rand(3, 2), torch.zeros(3, 3, dtype=torch.uint8)),
    ]
    path = tmp_path / "page.html"
    path.write_text(page.page(ALL, ALL, [Section(ALL, "".join(parts), ALL), Section("x", "y"), Section("z", "y")]))
    is_safe(path, tmp_path)


def test_the_report_of_a_hostile_run(tmp_path: Path) -> None:
    data = write_colours(tmp_path / NAMES[0], 4, size=(16, 16))
    for folder, name in zip(sorted(data.iterdir()), NAMES[1:], strict=False):
        folder.rename(data / name)
    recipe = tiny_recipe("dino", data={"path": str(data), "workers": 0}, trainer={"steps": 1, "batch_size": 4})
    run = pretrain(recipe, tmp_path / "runs" / NAMES[3])
    api.evaluate(run, protocols="knn", knn={"k": [2]})
    (result,) = (run.path / "eval").glob("*.json")
    content = json.loads(result.read_text())
    content |= {"notes": TEXTS, "protocol": ALL, "baselines": {ALL: content["values"]}}
    content["values"][ALL] = 1.0
    content["test"]["name"] = ALL
    result.write_text(json.dumps(content))
    with (run.path / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"step": 1, ALL: 2.0, f"loss/{ALL}": 1.0}) + "\n")
    config = run.path / "config.yaml"
    config.write_text(f"# {TEXTS[6]}\n{config.read_text()}")
    environment = run.path / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {ALL: ALL}))
    report = api.report(run)
    assert "onerror" in report.read_text()
    is_safe(report, tmp_path)


def test_sheets_and_concepts_of_hostile_files(tmp_path: Path) -> None:
    write_sheet([[SheetPicture(GREY, text, text) for text in TEXTS]], tmp_path / "sheet.html", ALL)
    is_safe(tmp_path / "sheet.html", tmp_path)
    photos = write_colours(tmp_path / "photos", 1, size=(16, 16))
    file = (photos / "red" / "000.png").rename(tmp_path / f"{NAMES[1]}.png")
    is_safe(api.concepts(concept_encoder(), file, tmp_path / "out"), tmp_path)


def test_the_page_of_a_hostile_study(tmp_path: Path) -> None:
    columns = {"data": NAMES[0], "protocols": ["knn"], "columns": {ALL: "knn.top1_k20"}}
    study = {"title": ALL, "runs": {"a": {"model": ALL}}, "evaluations": [columns]}
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    planned = plan_study(str(tmp_path / "study.yaml"), tmp_path / "out", None, [])
    is_safe(write_comparison(planned).page, tmp_path)
