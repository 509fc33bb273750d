"""The explorer with many images: start from an index, bytes sent, frames per second, and latency under load.

    python -m lab.benchmarks.explorer --images 100000 --clients 50

Vectors are synthetic, images are built-in scenes, and the encoder is a small untrained one with concepts: everything
but the quality of the neighbours is as with real data. Server, browser and clients share the machine. Chromium draws
WebGL on the CPU (SwiftShader), so frames per second are a lower bound for any graphics card. Load stays on the
loopback address and is bounded: every client sends its requests one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZE, PATCH, DIM, TOKENS = 64, 8, 96, 4
FRAMES_SECONDS = 4
FLAGS = [
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=8, help="per client")
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)  # a client process: address and settings
    chosen = parser.parse_args()
    if chosen.ask:
        asyncio.run(clients(chosen.ask[0], **json.loads(chosen.ask[1])))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        measure(chosen, Path(folder))


def measure(chosen: argparse.Namespace, folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from asterism.extras.explorer.explored import Explored
    from asterism.extras.explorer.model import ExploredModel
    from tests.extras.explorer.served import served

    encoder = small_encoder()
    path = write_index(folder / "many.npz", encoder, chosen.images)
    print(f"{chosen.images:,} images, {DIM} channels, index of {path.stat().st_size / 1e6:.0f} MB")
    start = time.perf_counter()
    open_collection(path, encoder)
    first = time.perf_counter() - start
    start = time.perf_counter()
    collection = open_collection(path, encoder)
    again = time.perf_counter() - start
    print(f"opened the first time in {first:.1f} s (copied to the cache), then in {again:.1f} s (mapped)")
    explored = Explored(collection, [ExploredModel("small", encoder, None)])
    explored.jobs.start("tsne of images", bytes)  # else it would be computed meanwhile
    with served(explored) as address:
        look(address)
        settings = {"count": chosen.clients, "requests": chosen.requests, "images": chosen.images}
        for load in ({**settings, "count": 1, "requests": 20}, settings):
            command = [sys.executable, __file__, "--ask", address, json.dumps(load)]
            subprocess.run(command, check=True)


def small_encoder() -> Any:
    from asterism.nn.backbone import BackboneConfig, build_backbone
    from asterism.nn.concepts import ConceptEncoder
    from asterism.nn.localization import Localization
    from asterism.nn.reconstruction import ConceptDecoder, PixelReconstruction

    config = BackboneConfig(
        name="vit_small_patch16_224", image_size=SIZE, patch_size=PATCH, dim=DIM, depth=3, heads=3, registers=TOKENS
    )
    reconstruction = PixelReconstruction(ConceptDecoder(DIM, 64, 1, 2), PATCH)
    return ConceptEncoder(build_backbone(config), Localization(DIM, 0.06), reconstruction, image_size=SIZE).eval()


def write_index(path: Path, encoder: Any, images: int) -> Path:
    """An index as `asterism embed` writes it, with synthetic vectors around forty centres."""
    from asterism.data import open_source
    from asterism.index.read import FORMAT
    from asterism.nn.fingerprint import encoder_fingerprint

    place = f"scenes:size={SIZE},count={images}"
    source = open_source(place, "train")
    drawn = np.random.default_rng(0)
    centres = drawn.standard_normal((40, DIM), dtype=np.float32)
    labels = drawn.integers(0, 40, images)
    vectors = centres[labels] + drawn.standard_normal((images, DIM), dtype=np.float32)
    facts = {
        "format": FORMAT, "model": "small", "step": None, "encoder": encoder_fingerprint(encoder), "data": source.name,
        "path": place, "split": "train", "fingerprint": source.fingerprint, "classes": [f"kind {i}" for i in range(40)],
    }  # fmt: skip
    np.savez(
        path, keys=np.array(source.keys()), metadata=np.array(json.dumps(facts)), embeddings=vectors, labels=labels
    )
    return path


def open_collection(path: Path, encoder: Any) -> Any:
    from asterism.extras.explorer.collection import collection_of_index

    return collection_of_index(path, None, encoder)


def look(address: str) -> None:
    """Open the page, then move and zoom the map for some seconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        sent: dict[str, int] = {}
        page.on("response", lambda response: sent.update({response.url.partition("/seen/")[2]: len(response.body())}))
        start = time.perf_counter()
        page.goto(address, timeout=300_000)
        page.wait_for_selector("body[data-ready]", timeout=900_000)
        shown = time.perf_counter() - start
        code = sum(size for name, size in sent.items() if not name.startswith("api/"))
        points, colours = (
            sum(s for n, s in sent.items() if n.startswith(f"api/map/{kind}")) for kind in ("points", "colour")
        )
        print(f"page ready in {shown:.1f} s")
        print(f"sent: code {code:,} bytes, points {points:,}, colours {colours:,}, all {sum(sent.values()):,}")
        count, seconds, kind = page.evaluate(MOVING, FRAMES_SECONDS)
        print(f"{count / seconds:.1f} frames per second while moving and zooming ({kind}, drawn on the CPU)")
        browser.close()


MOVING = """async seconds => {
  const map = await import("./map.js"), start = performance.now(), before = map.frames.drawn;
  await new Promise(done => {
    const step = now => {
      map.pan(Math.sin(now / 300) * 6, Math.cos(now / 300) * 6);
      map.zoom(1 + 0.01 * Math.sin(now / 500));
      now - start < 1000 * seconds ? requestAnimationFrame(step) : done();
    };
    requestAnimationFrame(step);
  });
  const webgl = document.createElement("canvas").getContext("webgl");
  return [map.frames.drawn - before, (performance.now() - start) / 1000, webgl ? "WebGL" : "plain canvas"];
}"""


async def clients(address: str, count: int, requests: int, images: int) -> None:
    """Each client asks what a person's page asks: a thumbnail, neighbours, facts, a concept's map, an edit."""
    import httpx

    drawn = np.random.default_rng(count)
    times: dict[str, list[float]] = {}

    async def client(http: httpx.AsyncClient, rows: list[int]) -> None:
        for number, row in enumerate(rows):
            asked: tuple[str, dict[str, Any] | None] = (
                (f"image/thumbnail?row={row}", None),
                (f"find/row?row={row}&count=12", None),
                (f"image/facts?row={row}", None),
                (f"image/drawn?row={row}&show=concept&token=1&size=128", None), ("edit", {"row": row, "drop": [0]}),
            )[number % 5]  # fmt: skip
            start = time.perf_counter()
            path, body = asked
            answer = await (http.get(f"api/{path}") if body is None else http.post(f"api/{path}", json=body))
            answer.raise_for_status()
            times.setdefault(path.partition("?")[0], []).append(1e3 * (time.perf_counter() - start))

    async with httpx.AsyncClient(base_url=address, timeout=600, limits=httpx.Limits(max_connections=count)) as http:
        start = time.perf_counter()
        await asyncio.gather(*(client(http, drawn.integers(0, images, requests).tolist()) for _ in range(count)))
        took = time.perf_counter() - start
    every = [value for values in times.values() for value in values]
    print(f"{count} clients, {len(every)} requests in {took:.1f} s; milliseconds at 50 / 90 / 99 %:")
    for name, values in {**dict(sorted(times.items())), "all": every}.items():
        print(f"  {name:16} " + " / ".join(f"{np.percentile(values, share):.0f}" for share in (50, 90, 99)))


if __name__ == "__main__":
    main()
