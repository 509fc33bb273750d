"""The page in Chromium: every part used with the mouse, then with the keyboard only; phone width and dark mode."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import CHROMIUM
from tests.extras.explorer.explored_sample import sample
from tests.extras.explorer.served import FLAGS, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed, so the page is not looked at"),
    pytest.mark.filterwarnings("default"),  # of uvicorn and playwright
]
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(sample(tmp_path_factory.mktemp("page"), text=True)) as place:
        yield place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page and everything its console said."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, reduced_motion="reduce", **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = address
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]")

    def close(self) -> None:
        self.context.close()
        assert self.said == []
        own = self.address.split("seen/")[0]
        assert not [url for url in self.requests if not url.startswith((own, "blob:" + own))]


def test_every_part_with_the_mouse(browser: Any, address: str) -> None:
    visit = Visit(browser, address, viewport={"width": 1280, "height": 860})
    page = visit.page
    assert page.get_attribute("#map", "data-points") == "12"

    # Map: colours, layouts, zoom, pan, hover, click.
    for colour in ("cluster", "typicality", "agreement", "labels so far", "label"):
        page.select_option("#colour", colour)
        page.wait_for_selector(f"#map[data-colour='{colour}']")
    assert "blue" in page.inner_text("#legend")
    page.click("#layouts [data-value=tsne]")
    page.wait_for_selector("#map[data-layout=tsne]")
    page.click("#zoom-in")
    page.click("#zoom-out")
    page.mouse.move(300, 400)
    page.mouse.wheel(0, -200)
    page.mouse.down()
    page.mouse.move(340, 420, steps=3)
    page.mouse.up()
    page.click("#zoom-all")
    page.click("#layouts [data-value=pca]")
    page.wait_for_selector("#map[data-layout=pca]")
    x, y = on_screen(page, 0)
    page.mouse.move(x, y)
    page.wait_for_selector("#tip:not([hidden])")
    assert "blue" in page.inner_text("#tip")
    page.mouse.click(x, y)

    # Image: layers, heat map, places, concepts.
    page.wait_for_selector("#image .picture")
    page.wait_for_selector("#found .tile")
    for layer in ("concepts", "components", "attention", "photo"):
        page.click(f"#image [data-value={layer}]")
        until(page, DRAWN, layer)
    page.hover("#image .picture", position={"x": 50, "y": 50})
    until(page, "document.querySelector('#image .picture').dataset.patch === '0'")
    until(page, PAINTED)
    page.click("#image .picture", position={"x": 150, "y": 150})
    page.wait_for_selector("#found .mark")
    page.click("#image [data-token='1']")
    page.wait_for_selector("#found >> text=Images that hold")

    # Edit: drop, move, swap.
    page.click("#tab-edit")
    until(page, "document.querySelector('#quality')?.textContent.includes('reconstructed')")
    before = page.get_attribute("#made", "src")
    page.click("#edit [data-strip=mine] [data-token='0']")
    page.click("#drop")
    until(page, "document.querySelector('#quality').textContent.includes('edited')")
    page.click("#drop")
    page.click("[aria-label='Move right']")
    page.wait_for_selector("#edits >> text=moved by 0 down, 1 right")
    page.click("#choose-other")
    page.mouse.click(*on_screen(page, 11))
    page.click("#edit [data-strip=theirs] [data-token='2']")
    page.wait_for_selector("#edits >> text=from the other image: 2")
    assert page.get_attribute("#made", "src") != before
    assert int(page.get_attribute("#quality", "data-milliseconds")) < 20_000
    page.click("#undo")
    until(page, "document.querySelector('#quality').textContent.includes('reconstructed')")

    # Find: a file, a sentence, near-duplicates, outliers, typical images.
    page.click("#tab-find")
    with page.expect_response(re.compile("find/file")):
        page.set_input_files(
            "#file",
            {
                "name": "x.png",
                "mimeType": "image/png",
                "buffer": page.request.get(address + "api/image/thumbnail?row=3").body(),
            },
        )
    page.wait_for_selector("#results >> text=Like x.png")
    page.fill("#sentence", "red things")
    page.press("#sentence", "Enter")
    page.wait_for_selector("#results >> text=“red things”")
    page.click("#duplicates")
    page.wait_for_selector("#results >> text=groups")
    page.click("#outliers")
    page.wait_for_selector("#results >> text=Outliers")
    page.click("#typical")
    page.wait_for_selector("#results >> text=Most typical")

    # Use: lasso, exports, labels, scores, the rest sorted, copies.
    page.click("#tool-lasso")
    lasso(page)
    page.wait_for_selector("#count >> text=12 selected")
    page.click("#tab-use")
    for button, name in (("#as-list", "selection.txt"), ("#as-csv", "selection.csv")):
        with page.expect_download() as saved:
            page.click(button)
        assert saved.value.suggested_filename == name
        assert "blue/000.png" in Path(saved.value.path()).read_text()
    page.fill("#folder", "copies")
    page.click("text=Copy to folder")
    page.wait_for_selector("#rest >> text=12 images copied to copies")
    page.click("#to-patches")
    page.wait_for_selector("#map[data-points='192']")
    page.click("#layouts [data-value=tsne]")
    page.wait_for_selector("#map[data-points='192'][data-layout=tsne]")
    page.select_option("#points", "concepts")
    page.wait_for_selector("#map[data-points='36']")
    page.select_option("#points", "images")
    page.wait_for_selector("#map[data-points='12']")
    for rows, label in (((0, 1, 2), "sky"), ((8, 9, 10), "fire")):
        page.click("#clear")
        page.focus("#map")
        page.evaluate("rows => import('./store.js').then(store => store.replaceSelection(rows))", list(rows))
        page.fill("#label", label)
        page.click("text=Label selection")
        page.wait_for_selector(f".chips >> text={label} · 3")
    assert page.inner_text(".scores").count("100 %") == 2
    page.click(".chips >> text=sky")
    page.wait_for_selector("#rest >> text=Most like “sky”")
    page.click("#unsure")
    page.wait_for_selector("#rest >> text=Least certain")

    # Runs: side by side, curves.
    page.click("#tab-runs")
    page.wait_for_selector("#curves figure")
    until(page, "document.querySelectorAll('#runs .pair .gallery').length === 2")
    page.hover("#runs .pair > div:nth-child(1) .picture", position={"x": 20, "y": 20})
    until(page, "document.querySelector('#runs .pair > div:nth-child(2) .picture').dataset.patch === '0'")
    visit.close()


def test_the_keyboard_alone(browser: Any, address: str) -> None:
    visit = Visit(browser, address, viewport={"width": 1280, "height": 860})
    page = visit.page
    keys = page.keyboard
    reach(page, "document.activeElement.id === 'map'")
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "+", "-", "Shift+ArrowLeft", "0", "l", "Escape"):
        keys.press(key)
    assert "image" in page.inner_text("#said") or page.inner_text("#tip")
    keys.press(" ")
    page.wait_for_selector("#count >> text=1 selected")
    keys.press("Enter")
    page.wait_for_selector("#image .picture")
    reach(page, "document.activeElement.id === 'tab-image'")
    keys.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-edit"
    keys.press("ArrowLeft")
    reach(page, "document.activeElement.classList.contains('picture')")
    keys.press("ArrowRight")
    keys.press("Enter")
    page.wait_for_selector("#found .mark")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    visit.close()


def test_screen_readers_have_a_name_for_everything(browser: Any, address: str) -> None:
    visit = Visit(browser, address, viewport={"width": 1280, "height": 860})
    page = visit.page
    page.evaluate("import('./store.js').then(store => store.open(1))")
    page.wait_for_selector("#found .tile")
    for tab in ("image", "edit", "find", "use", "runs"):
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(300)
        assert page.evaluate(UNNAMED) == [], tab
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Any, address: str, scheme: str) -> None:
    visit = Visit(browser, address, viewport={"width": 375, "height": 740}, color_scheme=scheme, has_touch=True)
    page = visit.page
    page.evaluate("import('./store.js').then(store => store.open(1))")
    page.wait_for_selector("#found .tile")
    for tab in ("image", "edit", "find", "use", "runs"):
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, tab
    for name in ("--ink", "--soft", "--accent"):
        assert page.evaluate(CONTRAST, name) >= 4.5, name
    visit.close()


def until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait for a condition. Playwright's own waiting evaluates strings in the page, which its policy forbids."""
    for _ in range(PATIENCE // 50):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {condition}")


def on_screen(page: Any, point: int) -> tuple[float, float]:
    """Where a point of the fitted map is."""
    box = page.locator("#map").bounding_box()
    x, y = page.evaluate(
        "async point => { const answer = await fetch('api/map/points');"
        " const all = new Uint16Array(await answer.arrayBuffer());"
        " return [all[2 * point] / 65535, all[2 * point + 1] / 65535] }",
        point,
    )
    side = 0.9 * min(box["width"], box["height"])
    return box["x"] + box["width"] / 2 + (x - 0.5) * side, box["y"] + box["height"] / 2 + (y - 0.5) * side


def lasso(page: Any) -> None:
    """Draw around everything."""
    box = page.locator("#map").bounding_box()
    corners = [(3, 3), (box["width"] - 3, 3), (box["width"] - 3, box["height"] - 3), (3, box["height"] - 3), (3, 5)]
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    for x, y in corners[1:]:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=2)
    page.mouse.up()


def reach(page: Any, condition: str) -> None:
    """Press Tab until the focus is there."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(condition):
            return
    raise AssertionError(f"Tab never reaches {condition}")


UNNAMED = """() => {
  const kinds = 'button, input, select, canvas[tabindex], [role=tabpanel], [role=application], img:not([alt])';
  const named = each => each.ariaLabel || each.getAttribute('aria-labelledby') || each.textContent.trim()
    || [...(each.labels ?? [])].some(label => label.textContent.trim());
  return [...document.querySelectorAll(kinds)].filter(each => each.getClientRects().length)
    .filter(each => each.tagName === 'IMG' || !named(each)).map(each => each.outerHTML.slice(0, 120));
}"""

DRAWN = """layer => {
  const image = document.querySelector('#image .picture img');
  return image.src.includes(`show=${layer}`) && image.complete && image.naturalWidth > 0;
}"""

PAINTED = """() => {
  const seen = document.querySelector('#image .picture canvas'), blank = document.createElement('canvas');
  Object.assign(blank, { width: seen.width, height: seen.height });
  return seen.toDataURL() !== blank.toDataURL();
}"""

CONTRAST = """name => {
  const style = getComputedStyle(document.documentElement);
  const place = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const linear = value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = colour => {
    place.fillStyle = style.getPropertyValue(colour);
    place.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...place.getImageData(0, 0, 1, 1).data].map(value => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(name), light('--card')].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
