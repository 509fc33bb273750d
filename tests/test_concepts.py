"""Using a model with concepts: pictures, search by a single concept, reconstructions, and what is rejected."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner, Result

import asterism
from asterism import cli
from asterism.errors import UserError
from asterism.nn.concepts import ConceptEncoder
from asterism.ops import concept_edits
from tests.concept_samples import TOKENS, concept_encoder, write_photos
from tests.evals.samples import small_encoder
from tests.train.tiny import pretrain, tiny_recipe


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos(Path("photos"))
    concept_encoder().save("concepts.safetensors")


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def pixels(path: str | Path) -> Tensor:
    return torch.from_numpy(np.array(Image.open(path)))


def names(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


# --- concepts -------------------------------------------------------------------------------------------------------


def test_from_photos_to_a_page() -> None:
    assert call("embed", "concepts.safetensors", "-d", "photos", "-o", "photos.parquet").exit_code == 0
    words = ("concepts", "concepts.safetensors", "photos/red/000.png", "photos/blue/000.png")
    result = call(*words, "--index", "photos.parquet", "--neighbours", "2", "--out", "shown")
    assert result.exit_code == 0, result.output
    assert result.stdout == "shown/concepts.html\n"
    each = {"image", "concepts", "reconstruction"} | {
        f"{kind}-{token}" for kind in ("concept", "nearest") for token in range(TOKENS)
    }
    assert names("shown") == {"concepts.html"} | {f"{folder}/{n}.png" for folder in ("000", "000-1") for n in each}
    page = Path("shown/concepts.html").read_text()
    assert page.count("<img") == 2 * (3 + TOKENS + TOKENS * (1 + 2))
    assert '="http' not in page, "the page is self-contained"
    first = page.partition("<h2>000-1</h2>")[0]
    assert "red/000.png, concept" not in first, "an image is not its own neighbour"
    assert "blue/000.png, concept" not in page.partition("<h2>000-1</h2>")[2]
    assert pixels("shown/000/nearest-0.png").shape == (256, 2 * 256, 3)
    made = concept_encoder()
    features = made.encode([Path("photos/red/000.png")])
    expected = (made.reconstruct(features.sparse, features.where)[0] * 255).round().to(torch.uint8)
    assert torch.equal(pixels("shown/000/reconstruction.png")[::16, ::16], expected.permute(1, 2, 0))


def test_concepts_without_an_index_and_of_pictures_in_memory() -> None:
    pictures = [Image.new("RGB", (20, 30), "red"), np.zeros((8, 9, 3), dtype=np.uint8)]
    path = asterism.concepts(concept_encoder(), pictures)
    assert path == Path("concepts/concepts.html")
    assert {name.split("/")[0] for name in names("concepts")} == {"concepts.html", "image-0", "image-1"}
    assert "Nearest images" not in path.read_text()


def test_a_model_without_a_decoder_still_shows_its_maps() -> None:
    page = asterism.concepts(concept_encoder(decoder=False), ["photos/red/000.png"], "shown")
    assert "No reconstruction: this encoder has no decoder" in page.read_text()
    assert {"000/concept-0.png", "000/concepts.png"} < names("shown")
    assert "000/reconstruction.png" not in names("shown")
    with pytest.raises(UserError, match="has no decoder"):
        asterism.reconstruct(concept_encoder(decoder=False), ["photos/red/000.png"])
    assert not Path("reconstructions").exists()


# --- reconstruct ----------------------------------------------------------------------------------------------------


def test_the_other_image_of_a_swap_may_be_an_array() -> None:
    other = np.asarray(Image.open("photos/green/000.png").convert("RGB"))
    written = asterism.reconstruct("concepts.safetensors", ["photos/red/000.png"], "made", swap=other)
    assert [path.name for path in written] == ["000.reconstruction.png", "000.edited.png"]


@pytest.mark.parametrize("verb", ["concepts", "reconstruct"])
def test_a_tokenizer_reaches_the_model_and_is_never_ignored(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (verb, "concepts.safetensors", "photos/red/000.png", "--out", "made", "--tokenizer", "vqgan.bin")
    result = call(*words)
    assert result.exit_code == 2
    assert "concepts.safetensors does not need a separate tokenizer" in result.stderr
    asked = []

    def load(source: str, **hints: object) -> ConceptEncoder:
        asked.append((source, hints["tokenizer"]))
        return concept_encoder()

    monkeypatch.setattr("asterism.models.load_encoder", load)
    assert call(*words).exit_code == 0
    assert asked == [("concepts.safetensors", "vqgan.bin")]


def test_reconstructions_of_edited_factors() -> None:
    result = call(
        *("reconstruct", "concepts.safetensors", "photos/red/000.png", "--out", "made", "--drop", "0"),
        *("--move", "1:-1,2", "--swap", "photos/green/000.png"),
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["made/000.reconstruction.png", "made/000.edited.png"]
    encoder = concept_encoder()
    mine, other = (encoder.encode([Path(f"photos/{colour}/000.png")]) for colour in ("red", "green"))
    for name, sparse, where in (
        ("reconstruction", mine.sparse, mine.where),
        ("edited", other.sparse, concept_edits.move(concept_edits.drop(mine.where, [0]), 1, -1, 2)),
    ):
        expected = (encoder.reconstruct(sparse, where)[0] * 255).round().to(torch.uint8)
        assert torch.equal(pixels(f"made/000.{name}.png"), expected.permute(1, 2, 0)), name
    assert not torch.equal(pixels("made/000.reconstruction.png"), pixels("made/000.edited.png"))


def test_results_are_kept_unless_replaced() -> None:
    image = "photos/red/000.png"
    Path("made").mkdir()
    Path("made/notes.txt").write_text("precious")
    for work in (asterism.reconstruct, asterism.concepts):
        with pytest.raises(UserError, match="made already exists; replace its files with --overwrite"):
            work("concepts.safetensors", [image], "made")
    asterism.reconstruct("concepts.safetensors", [image], "made", overwrite=True)
    assert names("made") == {"notes.txt", "000.reconstruction.png"}


# --- mistakes -------------------------------------------------------------------------------------------------------

ONE = ("concepts.safetensors", "photos/red/000.png")
MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "no concepts": (
        ("concepts", "plain.safetensors", ONE[1]),
        "plain.safetensors (vit_tiny_patch16_224) has no concept",
    ),
    "how to get concepts": (("reconstruct", "plain.safetensors", ONE[1]), "asterism pretrain stellar --data DATA"),
    "no network": (("concepts", "pixels", ONE[1]), "pixels (pixels) has no concepts"),
    "missing image": (("concepts", ONE[0], "nowhere.png"), "cannot read the image nowhere.png"),
    "broken image": (("concepts", *ONE, "broken.png"), "cannot read the image broken.png"),
    "broken image to reconstruct": (("reconstruct", *ONE, "broken.png"), "cannot read the image broken.png"),
    "broken image to swap": (("reconstruct", *ONE, "--swap", "broken.png"), "cannot read the image broken.png"),
    "dropped concept out of range": (
        ("reconstruct", *ONE, "--drop", "1,3"),
        "concept 3 does not exist; this model has 3, numbered from 0 to 2",
    ),
    "moved concept out of range": (("reconstruct", *ONE, "--move", "7:1,1"), "concept 7 does not exist"),
    "everything dropped": (("reconstruct", *ONE, "--drop", "0,1,2"), "all 3 concepts would be dropped"),
    "unreadable drop": (("reconstruct", *ONE, "--drop", "sky"), "cannot read --drop sky; give concept numbers"),
    "unreadable move": (("reconstruct", *ONE, "--move", "1:2"), "cannot read --move 1:2; give TOKEN:DY,DX"),
    "moved twice": (("reconstruct", *ONE, "--move", "1:0,2", "--move", "1:2,0"), "moves a concept twice"),
    "missing index": (("concepts", *ONE, "--index", "no.parquet"), "there is no index no.parquet"),
    "index without concepts": (("concepts", *ONE, "--index", "plain.npz"), "another model (Encoder)"),
    "index of another model": (("concepts", *ONE, "--index", "wide.npz"), "another model (ConceptEncoder)"),
    "index of another model as wide": (("concepts", *ONE, "--index", "other.npz"), "was made by another model"),
    "output is a file": (("concepts", *ONE, "--out", "broken.png"), "broken.png is a file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained_and_leave_nothing(mistake: str) -> None:
    words, message = MISTAKES[mistake]
    small_encoder().save("plain.safetensors")
    Path("broken.png").write_bytes(b"cut off")
    if "index" in mistake:
        asterism.embed(small_encoder(), "photos", "plain.npz")
        asterism.embed(concept_encoder(dim=24), "photos", "wide.npz")
        asterism.embed(concept_encoder(seed=1), "photos", "other.npz")
    before = names(".")
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert message in " ".join(result.stderr.split())
    assert names(".") == before


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_with_concepts_is_reported_with_them_and_others_without(tmp_path: Path) -> None:
    settings = {"data": {"path": "photos"}, "trainer": {"steps": 2}}
    run = pretrain(tiny_recipe("stellar", **settings), tmp_path / "stellar")
    encoder = run.encoder()
    assert isinstance(encoder, ConceptEncoder)
    text = asterism.report(run).read_text()
    rows = text.partition("<h2>Concept by concept</h2>")[2].partition("</section>")[0]
    shown = rows.count("<figcaption>all concepts")
    assert shown > 0
    assert [rows.count(f"<figcaption>concept {token}, ") for token in range(5)] == [shown] * 4 + [0]
    assert "dB (PSNR, mean)" in text.partition("<h2>What is where</h2>")[2]
    page = asterism.concepts(run, ["photos/red/000.png"], "shown")
    assert page.is_file()

    other = pretrain(tiny_recipe("mae", **settings), tmp_path / "mae")
    assert "<h2>Concept by concept</h2>" not in asterism.report(other).read_text()
    with pytest.raises(UserError, match=r"a run of mae\) has no concepts"):
        asterism.concepts(other, ["photos/red/000.png"])
