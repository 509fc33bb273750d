"""The Python interface, as shown in the README."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import asterism
from asterism import api
from asterism.cli.program import COMMANDS
from asterism.evals.linear import Linear
from asterism.evals.result import read_results
from asterism.nn.encoder import Encoder
from asterism.train import engine
from asterism.train.recipe import Recipe
from asterism.train.run import Run
from tests import distributed
from tests.evals.samples import small_encoder, write_colours

SMALL: dict[str, Any] = {
    "backbone": {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2},
    "trainer": {"steps": 2, "batch_size": 4},
    "monitor.tensorboard": False,
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("labelled"), 5)


@pytest.fixture(scope="module")
def run(labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "mae"
    return asterism.pretrain(
        method="mae", data=labelled, out=out, **SMALL, **{"data.workers": 0, "method.decoder_dim": 16, "optim.lr": 3e-4}
    )


def test_the_readme_in_python(run: Run, labelled: Path) -> None:
    encoder = asterism.load(run.path)
    images = [Image.open(path) for path in sorted((labelled / "red").iterdir())]
    features = encoder.encode(images)
    assert features.cls.shape == (5, 16)
    assert features.patches.shape == (5, 4, 16)
    result = asterism.evaluate(run.path, data=labelled, protocols=["knn"])["knn"]
    assert result.path == run.path / "eval" / "knn.json"
    assert result.model.step == 2


def test_exported_names(run: Run) -> None:
    from asterism import Encoder, Features, Result, Run, UserError, ops

    assert isinstance(asterism.load(run), Encoder), "a run works like its path"
    assert isinstance(asterism.load(run).encode(torch.rand(1, 3, 16, 16)), Features)
    assert (Run, Result.__name__) == (type(run), "Result")
    assert issubclass(UserError, Exception)
    assert float(ops.koleo.koleo(torch.eye(3)[None])) < 0.7
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'; it has .*koleo"):
        ops.nothing  # noqa: B018
    assert set(asterism.__all__) <= set(dir(asterism))


def test_everything_is_embedded_by_default(tmp_path: Path) -> None:
    for split, each in (("train", 3), ("val", 2)):
        write_colours(tmp_path / "photos" / split, each)
    written = asterism.embed(small_encoder(), tmp_path / "photos", tmp_path / "all.npz")
    assert (written.images, written.data) == (15, "photos/all")
    file = np.load(tmp_path / "all.npz")
    assert sum(key.startswith("val/") for key in file["keys"].tolist()) == 6
    assert file["labels"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 1, 1, 2, 2]
    assert asterism.embed(small_encoder(), tmp_path / "photos", tmp_path / "v.npz", split="val").images == 6
    query = tmp_path / "photos/val/red/000.png"
    found = asterism.search(small_encoder(), tmp_path / "all.npz", query, tmp_path / "s.html", count=1)
    assert found[query][0].key == "val/red/000.png"
    assert asterism.embed(small_encoder(), "scenes:size=16,count=5", tmp_path / "s.npz").data == "scenes/train"


def test_protocols_finished_before_an_interruption_are_kept(
    run: Run, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Linear, encoder: Encoder) -> Iterator[tuple[str, float]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Linear, "measure", stop)
    with pytest.raises(KeyboardInterrupt):
        asterism.evaluate(run, labelled, ["knn", "linear", "retrieval"], out=tmp_path / "eval")
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["knn.json"]
    assert read_results(tmp_path / "eval")[0].values


def test_two_processes_evaluate_like_one(labelled: Path, tmp_path: Path) -> None:
    alone = _evaluated(labelled, tmp_path / "one")
    assert distributed.run(_evaluated, labelled, tmp_path / "two") == [alone, alone]
    assert [path.name for path in (tmp_path / "two" / "eval").iterdir()] == ["knn.json"]


def _evaluated(labelled: Path, home: Path) -> dict[str, float]:
    """Evaluate as one of several processes: they share a feature cache, and the first one writes the result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setattr("asterism.features.cache.WORTH_KEEPING", 1)
        patch.setattr("asterism.features.extract.WORTH_KEEPING", 1)
        settings = {"k": [3], "batch_size": 2, "workers": 0}
        result = asterism.evaluate(small_encoder(), labelled, "knn", out=home / "eval", device="cpu", knn=settings)[
            "knn"
        ]
    assert list((home / "cache" / "asterism" / "features").iterdir())
    return dict(result.values)


def test_settings_in_three_forms_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Recipe, Path]] = []

    def remember(kind: object, recipe: Recipe, out: Path, **_: object) -> Run:
        seen.append((recipe, out))
        return Run(out)

    monkeypatch.setattr(engine, "start", remember)
    api.pretrain("dino", "photos", optim={"lr": 1e-3})
    api.pretrain("dino", "photos", **{"optim.lr": 1e-3})
    api.pretrain("dino", "photos", overrides=["optim.lr=1e-3"])
    api.pretrain(recipe="dino", data={"path": "photos"}, method={"name": "dino"}, optim={"lr": 1e-3})
    assert [recipe for recipe, _ in seen] == [seen[0][0]] * 4
    assert seen[0][0].optim.lr == 1e-3
    assert {out for _, out in seen} == {Path("runs/dino")}


def test_an_encoder_in_memory_can_be_evaluated(labelled: Path, tmp_path: Path) -> None:
    encoder = small_encoder()
    result = asterism.evaluate(encoder, labelled, "knn", knn={"k": [2, 3]})["knn"]
    assert list(result.values) == ["top1_k2", "top1_k3"]
    assert result.path is None
    saved = encoder.save(tmp_path / "x.safetensors")
    again = asterism.evaluate(saved, labelled, "knn", **{"knn.k": [2, 3]}, out=tmp_path)["knn"]
    assert again.values == result.values
    assert again.path == tmp_path / "knn.json"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        asterism.pretrian  # noqa: B018
    commands = set(COMMANDS) - {"demo", "list"}
    parts = {"Encoder", "Features", "Result", "Run", "UserError", "load", "ops", "plan", "weights"}
    assert set(asterism.__all__) == commands | parts | {"__version__"}
    assert {"align", "compare", "explore"} <= set(dir(asterism)), "those of satellites"
    assert asterism.compare.__module__ == "asterism.extras.studies.command"
