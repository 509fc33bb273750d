"""Runs, exports, results and indices of every released version are read, or refused by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import asterism
from asterism.errors import UserError
from asterism.evals.result import read_results
from asterism.extras.words.aligned import AlignedEncoder
from asterism.index.read import open_index
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.train.run import Run

_HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in _HERE.glob("[0-9]*") if path.is_dir())


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one version's files, in the current folder: the recipe names its data by a relative path."""
    place = Path(shutil.copytree(_HERE / request.param, tmp_path / "here"))
    monkeypatch.chdir(place)
    return place


def test_a_run_is_resumed(version: Path) -> None:
    expected = json.loads((version / "expected.json").read_text())
    run = asterism.pretrain(resume="run")
    assert [record["loss"] for record in run.metrics()] == pytest.approx(expected["losses"], rel=1e-3)
    vectors = asterism.load("run").encode([Path("photos/red/0.png"), Path("photos/blue/3.png")]).cls
    torch.testing.assert_close(vectors, torch.tensor(expected["vectors"]), rtol=1e-2, atol=1e-3)


def test_its_export_and_results_are_read(version: Path) -> None:
    encoder = asterism.load("run")
    expected = torch.tensor(json.loads((version / "expected.json").read_text())["vectors"])
    vectors = encoder.encode([Path("photos/red/0.png"), Path("photos/blue/3.png")]).cls
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)
    (result,) = read_results(Path("run/eval"))
    assert result.protocol == "knn"


def test_a_fine_tuned_run_is_used_and_resumed(version: Path) -> None:
    expected = json.loads((version / "expected_finetuned.json").read_text())
    images: list[Path | str] = [Path("photos/red/0.png"), Path("photos/blue/3.png")]
    scores = torch.stack([prediction.scores for prediction in asterism.load("finetuned").predict(images)])
    torch.testing.assert_close(scores, torch.tensor(expected["scores"]), rtol=1e-4, atol=1e-5)
    (result,) = read_results(Path("finetuned/eval"))
    assert result.protocol == "classify"
    run = asterism.finetune(resume="finetuned")
    losses = [record["loss"] for record in run.metrics() if "loss" in record]
    assert losses == pytest.approx(expected["losses"], rel=1e-3)
    scores = torch.stack([prediction.scores for prediction in asterism.load("finetuned").predict(images)])
    torch.testing.assert_close(scores, torch.tensor(expected["scores"]), rtol=1e-2, atol=1e-3)


def test_an_aligned_run_is_used_and_resumed(version: Path) -> None:
    expected = json.loads((version / "expected_aligned.json").read_text())
    sentences = torch.tensor(expected["sentences"])
    torch.testing.assert_close(sentences_of("aligned"), sentences, rtol=1e-4, atol=1e-5)
    (result,) = read_results(Path("aligned/eval"))
    assert result.protocol == "text-retrieval"
    run = asterism.align(resume="aligned")
    losses = [record["loss"] for record in run.metrics() if "loss" in record]
    assert losses == pytest.approx(expected["losses"], rel=1e-3)
    torch.testing.assert_close(sentences_of("aligned"), sentences, rtol=1e-2, atol=1e-3)


def sentences_of(run: str) -> torch.Tensor:
    model = asterism.load(run)
    assert isinstance(model, AlignedEncoder)
    return model.encode_text(["a red picture", "a blue picture"])


@pytest.mark.parametrize("name", ["index.npz", "index.parquet"])
def test_its_indices_are_read_or_refused_by_name(version: Path, name: str) -> None:
    """An index is refused when this version computes other vectors with the same weights."""
    encoder = asterism.load("run")
    if json.loads(str(np.load("index.npz")["metadata"]))["encoder"] != encoder_fingerprint(encoder):
        with pytest.raises(UserError, match=rf"model \(run at step 4\) with Asterism {version_of(version)}"):
            open_index(Path(name), encoder)
        return
    index = open_index(Path(name), encoder)
    expected = torch.tensor(json.loads((version / "expected.json").read_text())["vectors"])
    assert len(index.keys) == 8
    row = index.keys.index("red/0.png")
    assert torch.allclose(next(index.vectors())[row, 0], expected[0], atol=1e-4)


def version_of(place: Path) -> str:
    return json.loads((place / "run" / "environment.json").read_text())["packages"]["asterism"]


def test_newer_files_are_refused_by_name(version: Path) -> None:
    config = Run(version / "run").path / "config.yaml"
    config.write_text(config.read_text() + "novelty: 1\n")
    with pytest.raises(
        UserError, match=r"config.yaml does not fit Asterism .* \(the run was made by version .*novelty"
    ):
        asterism.pretrain(resume="run")
    content = dict(np.load("index.npz"))
    content["metadata"] = np.array(json.dumps(json.loads(str(content["metadata"])) | {"format": 9, "version": "4.2"}))
    np.savez("index.npz", **content)
    with pytest.raises(UserError, match=r"index.npz was written by a newer version of Asterism \(4\.2, format 9\)"):
        open_index(Path("index.npz"), asterism.load("run"))
