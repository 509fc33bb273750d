"""The explorer on images whose names are attacks: they are shown as text, and nothing runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from asterism.data import open_source
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.model import ExploredModel
from asterism.extras.explorer.open import open_explored
from asterism.index.write import write_embeddings
from asterism.types import Model
from tests.browser import CHROMIUM
from tests.concept_samples import concept_encoder, write_photos
from tests.extras.explorer.explored_sample import client_of
from tests.extras.explorer.served import FLAGS, served
from tests.reports.test_hostile_names import NAMES


def hostile(folder: Path) -> Explored:
    """Class folders, an image, the models and the notes of a log have names that are attacks."""
    photos = folder / "photos"
    write_photos(photos)
    for place, name in zip(sorted(photos.iterdir()), NAMES[:3], strict=True):
        place.rename(photos / name)
    first = sorted(photos.rglob("*.png"))[0]
    first.rename(first.with_name(f"{NAMES[3]}.png"))
    run = folder / "run"
    run.mkdir()
    record = {"step": 1, "loss": 1.0, f"loss/{NAMES[0]}": 2.0, "warning": NAMES[1]}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    encoder = concept_encoder()
    index = folder / "index.npz"
    source = open_source(photos, "all")
    write_embeddings(encoder, source, index, Model(NAMES[0]), dense=False, batch_size=4, opened=(str(photos), None))
    models = [ExploredModel(NAMES[4], encoder, run), ExploredModel(NAMES[0], concept_encoder(seed=1), None)]
    return open_explored(models, None, index, None, folder / "written")


def test_every_answer_with_names_is_json_or_a_table_and_never_a_page(tmp_path: Path) -> None:
    client = client_of(hostile(tmp_path))
    for path, more in (
        ("world", {}),
        ("image/facts", {"row": 0}),
        ("map/colour", {"by": "label"}),
        ("runs/curves", {}),
    ):
        answer = client.get(path, **more)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), path
    for kind, media in (("list", "text/plain"), ("csv", "text/csv")):
        answer = client.post("use/export", {"rows": [0, 5], "kind": kind})
        assert answer.headers["content-type"].startswith(media)
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.post("use/label", {"rows": [0, 1], "label": NAMES[0]}).headers["content-type"] == "application/json"
    copied = client.post("use/copy", {"rows": [0, 5], "folder": "chosen"})
    assert copied.json()["copied"] == 2
    assert not any({*file.name} & {*"<>\"'=&;"} for file in (tmp_path / "written/chosen").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed, so the page is not looked at")
@pytest.mark.filterwarnings("default")  # of uvicorn and playwright
def test_nothing_runs_in_the_browser(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with served(hostile(tmp_path)) as address, playwright.sync_playwright() as started:
        chromium: Any = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = chromium.new_context(bypass_csp=True, reduced_motion="reduce").new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{address}#row=0")
        page.wait_for_selector("body[data-ready]")
        for tab in page.locator("[role=tab]").all():
            tab.click()
            page.wait_for_timeout(300)
        shown = page.content()
        assert page.evaluate("document.documentElement.dataset.ran") is None
        assert page.locator("img[src=x], svg[onload], details[ontoggle]").count() == 0
        chromium.close()
    assert "onerror" in shown, "the names are on the page, as text"
