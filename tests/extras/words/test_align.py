"""Alignment from captions to search: it learns, resumes exactly, and two processes equal one."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import asterism
from asterism.errors import UserError
from asterism.extras.words.aligned import AlignedConceptEncoder, AlignedEncoder
from asterism.extras.words.attention_pooling import chosen_tokens
from asterism.extras.words.opening import ALIGNMENT
from asterism.index.read import open_index
from asterism.index.search import nearest_to_texts
from asterism.nn.encoder import Encoder
from asterism.nn.safetensors_file import read_safetensors
from asterism.ops.launched import launched
from asterism.train import engine
from asterism.train.kind import Request
from tests import distributed
from tests.export_samples import recorded
from tests.extras.words.tiny import SETTINGS, aligned, captions, encoder_file


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligned")
    aligned(folder, "trainer.steps=60")
    return folder


def model_of(folder: Path) -> AlignedEncoder:
    model = asterism.load(folder / "run")
    assert isinstance(model, AlignedEncoder)
    return model


def test_protocols_on_what_it_learnt(trained: Path) -> None:
    data = trained / "data" / "captions.jsonl"
    found = asterism.evaluate(
        trained / "run", data, ["text-retrieval", "winoground", "mmvp", "composition"], overrides=["mmvp.template='{}'"]
    )
    assert found["text-retrieval"].values["image_to_text_r5"] > 80
    assert found["composition"].values["colour"] > 90
    model, right = model_of(trained), []
    for number in range(6):
        for names in (("blue", "green"), ("red", "white")):
            images = model.encode([str(trained / "data" / f"{name}{number}.png") for name in names]).aligned
            s = images @ model.encode_text([f"a {name} picture" for name in names]).T
            right.append(bool(s[0, 0] > s[1, 0] and s[1, 1] > s[0, 1]))
    assert found["winoground"].values["image"] == pytest.approx(100 * sum(right) / len(right))
    assert found["mmvp"].values["average"] == found["winoground"].values["image"]
    assert (trained / "run" / "eval" / "winoground.json").is_file()


def test_zero_shot(trained: Path, tmp_path: Path) -> None:
    for name in ("blue", "red"):
        (tmp_path / "labelled" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "labelled" / name / f"{number}.png").symlink_to(trained / "data" / f"{name}{number}.png")
    found = asterism.evaluate(
        trained / "run", tmp_path / "labelled", "zero-shot", overrides=['zero-shot.templates=["a {} picture"]']
    )
    assert found["zero-shot"].values == {"top1": 100.0, "top5": 100.0, "chance": 50.0}
    with pytest.raises(UserError, match=r"must contain \{\} once"):
        asterism.evaluate(trained / "run", tmp_path / "labelled", "zero-shot", overrides=['zero-shot.templates=["a"]'])


def test_search_by_sentence_with_both_kinds_of_index(trained: Path, tmp_path: Path) -> None:
    """The index of the aligned run, and that of the encoder before, give the same images; that of another none."""
    found = {}
    for name in ("run", "source"):
        asterism.embed(trained / name, trained / "data", tmp_path / f"{name}.npz")
        found[name] = asterism.search(
            trained / "run", tmp_path / f"{name}.npz", text="a red picture", out=tmp_path / f"{name}.html", count=4
        )["a red picture"]
    assert all(neighbour.key.startswith("red") for neighbour in found["run"])
    assert [n.key for n in found["run"]] == [n.key for n in found["source"]]
    assert [n.similarity for n in found["run"]] == pytest.approx([n.similarity for n in found["source"]], abs=1e-5)
    other = encoder_file(tmp_path / "other", seed=1)
    asterism.embed(other, trained / "data", tmp_path / "other.npz")
    with pytest.raises(UserError, match="made by another model"):
        asterism.search(trained / "run", tmp_path / "other.npz", text="red", out=tmp_path / "x.html")
    with pytest.raises(UserError, match="aligned with text"):
        asterism.search(trained / "source", tmp_path / "source.npz", text="red", out=tmp_path / "x.html")


def test_an_index_of_patches_serves_a_probe_of_patches(trained: Path, tmp_path: Path) -> None:
    model = model_of(trained)
    model.alignment.tokens = "patches"
    asterism.embed(model.frozen(), trained / "data", tmp_path / "dense.npz", dense=True)
    asterism.embed(model.frozen(), trained / "data", tmp_path / "plain.npz")
    index = open_index(tmp_path / "dense.npz", model)
    matches = nearest_to_texts(index, model, model.encode_text(["red"]), 3)
    paths = [str(trained / "data" / index.keys[row]) for row in matches.image[0].tolist()]
    expected = (model.encode(paths).aligned @ model.encode_text("red").T)[:, 0]  # type: ignore[operator]
    torch.testing.assert_close(matches.similarity[0], expected, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="lacks patches"):
        nearest_to_texts(open_index(tmp_path / "plain.npz", model), model, model.encode_text(["red"]), 3)


def test_words_in_concepts(trained: Path, tmp_path: Path) -> None:
    model = model_of(trained)
    assert isinstance(model, AlignedConceptEncoder)
    features = model.encode(str(trained / "data" / "red0.png"))
    maps = model.word_maps(features, ["red", "blue"])
    assert maps.concepts is not None
    alone = model.alignment.images_of_tokens(features.sparse[:, 1:2])  # type: ignore[index]
    torch.testing.assert_close(maps.concepts[0, :, 1], (model.encode_text(["red", "blue"]) @ alone.T)[:, 0])
    mixed = sum(maps.concepts[0, 0, r] * features.where[0, r] for r in range(3))  # type: ignore[index]
    torch.testing.assert_close(maps.where[0, 0], mixed)
    page = asterism.concepts(trained / "run", str(trained / "data" / "red0.png"), tmp_path / "out", text=["red", "<b>"])
    assert "Where the words are" in page.read_text()
    assert "<b>:" not in page.read_text()
    model.alignment.tokens = "class"
    with pytest.raises(UserError, match="has no place in the image"):
        model.word_maps(features, ["red"])


def test_an_export_has_the_aligned_vector_and_reads(trained: Path, tmp_path: Path) -> None:
    exported = asterism.export(trained / "run", "safetensors", tmp_path / "out")
    assert exported.difference is not None
    assert exported.difference < 1e-5
    again = asterism.load(tmp_path / "out")
    assert isinstance(again, AlignedEncoder)
    torch.testing.assert_close(again.encode_text("red"), model_of(trained).encode_text("red"))
    assert recorded(again)(torch.rand(1, 3, 16, 16))["aligned"].norm() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("tokens", ["class", "mean-patch", "patches", "sparse+class"])
def test_token_choice_is_one_override(tmp_path: Path, tokens: str) -> None:
    run = aligned(tmp_path, "trainer.steps=2", f"probe.tokens={tokens}", "loss.name=softmax", "data.held_out=0")
    model = asterism.load(run)
    assert isinstance(model, AlignedEncoder)
    assert model.alignment.tokens == tokens
    assert model.encode(torch.rand(2, 3, 16, 16)).aligned is not None
    assert float(model.alignment.bias) == -10  # softmax does not train it


def test_an_epoch_does_not_run_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    encode = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda self, images: seen.append(len(images)) or encode(self, images))
    aligned(tmp_path, "trainer.steps=9", "data.encode_batch=4")
    assert sum(seen) == 24  # each image once, in three epochs


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return dict(read_safetensors(run / "alignment.safetensors")[0])


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = aligned(tmp_path, "trainer.steps=6", "checkpoint.every_steps=2", name="whole")
    run = aligned(tmp_path, "trainer.steps=6", "checkpoint.every_steps=2", "checkpoint.keep_last=9", name="cut")
    for step in (4, 6):
        shutil.rmtree(run.checkpoints / f"step-{step:08d}")
    shutil.rmtree(tmp_path / "source")  # the run has its own copy
    asterism.align(resume=run.path)
    expected = tensors(whole.path)
    for name, value in tensors(run.path).items():
        assert torch.equal(value, expected[name]), name


def train_in_two(folder: str, recipe: dict[str, object]) -> list[float]:
    """One of two processes."""
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    place = launched()
    assert place is not None
    run = engine.carry_out(Request(ALIGNMENT, ALIGNMENT.recipe.parse(recipe), Path(folder) / "two"), place)
    return [record["loss"] for record in run.metrics() if "loss" in record]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_two_processes_equal_one(tmp_path: Path, loss: str) -> None:
    one = aligned(tmp_path, "trainer.steps=4", f"loss.name={loss}", name="one")
    expected = [record["loss"] for record in one.metrics() if "loss" in record]
    recipe = one.align_recipe.model_dump(mode="json")
    recipe["trainer"] |= {"devices": 2, "strategy": "ddp"}
    together, _ = distributed.run(distributed.launched, train_in_two, str(tmp_path), recipe)
    assert len(expected) == 4
    assert together == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    data, source = captions(tmp_path / "data"), encoder_file(tmp_path / "source")

    def refused(match: str, *changes: str, text: str | None = None, place: Path = data) -> None:
        with pytest.raises(UserError, match=match) as error:
            asterism.align(source, place, text, tmp_path / "out", overrides=[*SETTINGS, "trainer.steps=2", *changes])
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()

    refused("there is no text model nowhere", text="nowhere")
    refused("trainer.accumulate=1", "trainer.accumulate=2")
    refused("use ddp", "trainer.strategy=fsdp")
    refused("source.path cannot be set: the source is the first argument", "source.path=elsewhere")
    refused("the text model is given twice: --text own and text.name=nowhere", "text.name=nowhere", text="own")
    refused("there are no captions at", place=tmp_path / "no.jsonl")
    folder = tmp_path / "tower"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    refused("has no tokenizer", text=str(folder))
    with pytest.raises(UserError, match="no captioned images given"):
        asterism.align(source, out=tmp_path / "out")
    features = Encoder(asterism.load(source).backbone).encode(torch.rand(1, 3, 16, 16))
    with pytest.raises(UserError, match="reads concept tokens"):
        chosen_tokens(features, "sparse")
