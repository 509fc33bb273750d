"""Twelve small pictures of three colours, explored with two untrained encoders; one folder may be written to."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from starlette.testclient import TestClient

from asterism.data import open_source
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.model import ExploredModel
from asterism.extras.explorer.open import open_explored
from asterism.extras.explorer.server import build_app
from asterism.extras.words.aligned import AlignedEncoder, Alignment, aligned_encoder
from asterism.extras.words.attention_pooling import AttentionPooling
from asterism.extras.words.towers.build import build_tower
from asterism.extras.words.towers.own_tower import TextConfig
from tests.concept_samples import concept_encoder, write_photos

TOKEN, PORT = "the-token", 4321


def aligned() -> AlignedEncoder:
    """With an untrained probe over concepts and an untrained text tower."""
    encoder = concept_encoder()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tower = build_tower(TextConfig(dim=16, depth=1, heads=2, context=96), ["green things", "blue", "green", "red"])
        probe = AttentionPooling(encoder.backbone.dim, tower.dim, heads=2)
    return aligned_encoder(encoder, Alignment(probe, tower, "sparse", scale=20.0, bias=-10.0))


def sample(folder: Path, *, writes: bool = True, text: bool = False) -> Explored:
    photos = folder / "photos"
    if not photos.exists():
        write_photos(photos)
    run = folder / "run"
    run.mkdir(exist_ok=True)
    records = [{"step": step, "loss": 5.0 - step / 10, "knn": 30.0 + step} for step in range(1, 11)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    encoder = aligned() if text else concept_encoder()
    models = [
        ExploredModel("first", encoder, run),
        ExploredModel("second", concept_encoder(seed=1, decoder=False), None),
    ]
    return open_explored(models, open_source(photos, "all"), None, None, folder / "written" if writes else None)


class Client:
    """Asks the application without a network, and again while it computes."""

    def __init__(self, http: TestClient) -> None:
        self.http = http

    def get(self, path: str, **parameters: Any) -> Any:
        for _ in range(600):
            response = self.http.get(f"/{TOKEN}/api/{path}", params=parameters)
            if response.status_code != 202:
                return response
            time.sleep(0.1)
        raise AssertionError(f"{path} is never ready")

    def post(self, path: str, body: Any, **parameters: Any) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(f"/{TOKEN}/api/{path}", content=content, params=parameters)


def client_of(explored: Explored) -> Client:
    return Client(
        TestClient(build_app(explored, TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False)
    )
