"""Exports open in the programs they are for, with the features of the encoder."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import asterism
from asterism import UserError, cli
from asterism.evals.result import DataUsed, Result
from asterism.images.pictures import batch_of
from asterism.nn.encoder import Encoder
from asterism.tools.export.export import TARGETS, export_encoder
from asterism.tools.export.target import Target, Written
from asterism.train.run import create_run
from asterism.types import Model
from tests.concept_samples import concept_encoder
from tests.export_samples import MEAN, STD, small_swin, small_vit, timm_vit
from tests.train.tiny import tiny_recipe

SHAPES = [(1, 3, 16, 16), (5, 3, 24, 40), (2, 3, 8, 12), (3, 3, 4, 64)]  # batch sizes, sizes and aspects


def outputs(encoder: Encoder, images: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return encoder.named_outputs(encoder.normalise(images))


def assert_equal(made: Mapping[str, Any], encoder: Encoder, images: Tensor, atol: float = 1e-5) -> None:
    found = {name: torch.as_tensor(value) for name, value in made.items()}
    torch.testing.assert_close(found, outputs(encoder, images), atol=atol, rtol=0)


@pytest.fixture(scope="module")
def concepts_in_onnx(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    pytest.importorskip("onnxruntime")
    encoder, folder = concept_encoder(), tmp_path_factory.mktemp("onnx") / "model"
    assert asterism.export(encoder, "onnx", folder).difference < 1e-5
    return encoder, folder


def session_of(folder: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def run(session: Any, images: Tensor) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))


def test_onnx_has_every_output_for_any_batch_and_size(concepts_in_onnx: tuple[Encoder, Path]) -> None:
    encoder, folder = concepts_in_onnx
    session = session_of(folder)
    assert [output.name for output in session.get_outputs()] == ["cls", "patches", "sparse", "where"]
    for shape in SHAPES:
        images = torch.rand(shape)
        assert_equal(run(session, images), encoder, images)


def test_onnx_says_what_it_takes(concepts_in_onnx: tuple[Encoder, Path]) -> None:
    encoder, folder = concepts_in_onnx
    session = session_of(folder)
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["mean"]) == list(encoder.mean)
    assert json.loads(properties["std"]) == list(encoder.std)
    assert (properties["image_size"], properties["patch_size"]) == ("16", "4")
    assert properties["asterism_version"] == asterism.__version__
    assert "normalised inside" in properties["input"]
    assert session.get_inputs()[0].shape == ["batch", 3, "4*rows", "4*columns"]
    assert {o.name: o.shape for o in session.get_outputs()}["where"] == ["batch", 3, "rows", "columns"]


def test_graphs_hold_no_paths_of_this_machine(concepts_in_onnx: tuple[Encoder, Path]) -> None:
    stored = (concepts_in_onnx[1] / "model.onnx").read_bytes()
    assert b".py" not in stored
    assert str(Path(sys.prefix)).encode() not in stored


@pytest.mark.slow
def test_onnx_of_a_swin_in_half_precision(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    encoder = small_swin(depths=(2, 1, 1, 1))
    exported = asterism.export(encoder, "onnx", tmp_path / "swin", dtype="float16")
    assert "only for images of 32×32 pixels" in exported.notes[0]
    session = session_of(exported.folder)
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    for batch in (1, 3):
        images = torch.rand(batch, 3, 32, 32)
        assert_equal(run(session, images), encoder, images, atol=0.05)


SAMPLES: dict[str, Callable[[], Encoder]] = {
    "class token": small_vit,
    "mean patch": lambda: small_vit(class_token=False),
    "swin": small_swin,
    "rotary": lambda: timm_vit("vit_small_patch16_dinov3"),
    "attention pooling": lambda: timm_vit("vit_base_patch16_224", global_pool="map"),
    "norm after pooling": lambda: timm_vit("vit_base_patch16_224", global_pool="avg"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_timm_opens_its_folder(name: str, tmp_path: Path) -> None:
    encoder = SAMPLES[name]()
    folder = asterism.export(encoder, "timm", tmp_path / "timm").folder
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.rand(2, 3, encoder.image_size, encoder.image_size)
    with torch.no_grad():
        made = model(encoder.normalise(images))
    torch.testing.assert_close(made, outputs(encoder, images)["cls"], atol=1e-5, rtol=0)
    data = timm.data.resolve_model_data_config(model)
    assert (tuple(data["mean"]), tuple(data["std"])) == (MEAN, STD)
    assert (data["interpolation"], data["crop_pct"]) == ("bicubic", 1.0)
    assert tuple(data["input_size"]) == (3, encoder.image_size, encoder.image_size)


def test_timms_transform_is_ours(tmp_path: Path) -> None:
    encoder = small_vit(image_size=32)
    folder = asterism.export(encoder, "timm", tmp_path / "timm").folder
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    photo = picture(50, 71)
    ours = encoder.normalise(batch_of([photo], 32))
    one_level = 1 / 255 / min(STD)
    torch.testing.assert_close(transform(photo)[None], ours, atol=1.01 * one_level, rtol=0)


def picture(height: int, width: int) -> Image.Image:
    levels = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Image.fromarray(levels.numpy()).resize((width * 2, height * 2), Image.Resampling.BILINEAR)


def test_transformers_opens_its_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = concept_encoder()
    folder = asterism.export(encoder, "hf", tmp_path / "hf", license="mit").folder
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    photo = picture(40, 53)
    pixels = processor(photo, return_tensors="pt")["pixel_values"]
    ours = encoder.normalise(batch_of([photo], 16))
    torch.testing.assert_close(pixels, ours, atol=1.01 / 255 / min(encoder.std), rtol=0)
    with torch.no_grad():
        tokens = model(ours).last_hidden_state
    features = encoder.encode([photo])
    torch.testing.assert_close(tokens[:, 0], features.cls, atol=1e-5, rtol=0)
    torch.testing.assert_close(tokens[:, 1:4], features.sparse, atol=1e-5, rtol=0)
    torch.testing.assert_close(tokens[:, 4:], features.patches, atol=1e-5, rtol=0)
    for shape in SHAPES:
        images = torch.rand(shape)
        expected = outputs(encoder, images)
        made = TARGETS["hf"].open(folder)(images)
        torch.testing.assert_close(made, {name: expected[name] for name in ("cls", "patches", "sparse")})


@pytest.mark.parametrize(
    "make",
    [
        *SAMPLES.values(),
        lambda: small_vit(registers=2, class_position=True),
        lambda: small_vit(class_token=False, registers=2, resampling="offset"),
        lambda: timm_vit("vit_base_patch16_224", qk_norm=True),
    ],
)
def test_transformers_opens_every_network_of_timm(make: Callable[[], Encoder], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = make()
    exported = asterism.export(encoder, "hf", tmp_path / "hf")
    images = torch.rand(2, 3, encoder.image_size, encoder.image_size)
    with torch.no_grad():
        output = transformers.AutoModel.from_pretrained(exported.folder).eval()(encoder.normalise(images))
    torch.testing.assert_close(output.pooler_output, outputs(encoder, images)["cls"], atol=1e-5, rtol=0)
    assert_equal(TARGETS["hf"].open(exported.folder)(images), encoder, images)
    assert any("other sizes" in note for note in exported.notes) == (
        encoder.backbone.architecture.resampling == "offset"
    )


@pytest.mark.parametrize("target", ["hf", "timm"])
def test_the_code_of_model_cards_runs(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    encoder = concept_encoder()
    asterism.export(encoder, target, tmp_path / "FOLDER")
    picture(30, 40).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names = run_card(tmp_path / "FOLDER")
    features = encoder.encode("photo.jpg")
    if target == "hf":
        torch.testing.assert_close(names["concepts"], features.sparse, atol=0.05, rtol=0)
    else:
        assert names["vector"].shape == features.cls.shape


def test_the_code_of_a_graphs_card_runs(
    concepts_in_onnx: tuple[Encoder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = concepts_in_onnx
    picture(30, 40).save(folder / "photo.jpg")
    monkeypatch.chdir(folder)
    assert run_card(folder)["outputs"]["cls"].shape == (1, 16)


def run_card(folder: Path) -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("target", ["timm", "hf"])
def test_other_targets_in_half_precision(target: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for dtype in ("float16", "bfloat16"):
        exported = asterism.export(concept_encoder(), target, tmp_path / dtype, dtype=dtype)
        assert exported.difference is not None
        assert 1e-5 < exported.difference < 0.1


def test_the_encoder_itself_stays_as_it_is(tmp_path: Path) -> None:
    encoder = small_vit().train()
    asterism.export(encoder, "timm", tmp_path / "out", dtype="float16")
    assert encoder.training
    assert next(encoder.parameters()).dtype == torch.float32


def write_run(folder: Path) -> Path:
    """A run folder as far as export looks at it."""
    folder.mkdir(parents=True)
    create_run(folder, tiny_recipe("stellar", data={"path": "/home/someone/photos"}))
    concept_encoder().save(folder, step=1234)
    used = DataUsed("/data/birds", 500, "0")
    Result("knn", {"top1": 61.5}, {}, Model("run", 1234), used, used, 1.0, {"/models/nano": {"top1": 50.0}}).write(
        folder / "eval"
    )
    return folder


def test_the_card_of_a_run_has_data_method_and_scores(tmp_path: Path) -> None:
    exported = asterism.export(write_run(tmp_path / "first"), "safetensors", tmp_path / "out", license="cc-by-4.0")
    card = (exported.folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: cc-by-4.0\nlibrary_name: asterism\n")
    for line in (
        "# first",
        "| method | stellar |",
        "| training data | photos |",
        "| optimiser steps | 1,234 |",
        "| licence | cc-by-4.0 |",
        "| protocol | data | images | metric | this model | nano |",
        "| knn | birds | 500 | top1 | 61.50 | 50.00 |",
        "## Intended use and limits",
    ):
        assert f"{line}\n" in card
    assert "/home/someone" not in card


def call(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["export", *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--to", "onxx"), "unknown export target 'onxx'; did you mean 'onnx'?"),
        (("run", "--to", "coreml"), "choose from: hf, onnx, safetensors, timm"),
        (("run", "--to", "hf", "--dtype", "float8"), "unknown dtype 'float8'; did you mean"),
        (("run", "--to", "onnx", "--dtype", "bfloat16"), "onnxruntime does not run bfloat16"),
        (("empty", "--to", "hf"), "empty contains no weights"),
        (("nowhere/run", "--to", "hf"), "no such file or folder: nowhere/run"),
        (("pixels", "--to", "onnx"), "raw pixels are not a network"),
        (("run", "--to", "hf", "--out", "file"), "file is a file; choose a folder for --out"),
        (("run", "--to", "hf", "--out", "full"), "full already exists"),
        (
            ("run", "--to", "hf", "--out", "run", "--overwrite"),
            "run is a run; choose another --out, for example run-export",
        ),
        (("w/a.safetensors", "--to", "hf", "--out", "w", "--overwrite"), "w holds the weights that are exported"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    for name in ("empty", "full", "w"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("method: {name: dino}\n")
    (tmp_path / "full" / "photo.jpg").touch()
    (tmp_path / "file").touch()
    small_vit().save("w/a.safetensors")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    failed = call(*words)
    assert failed.exit_code == 2, failed.output
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"'onnxscript': pip install 'asterism\[export\]'"):
        asterism.export(small_vit(), "onnx", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_without_transformers_a_folder_is_written_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    exported = asterism.export(small_vit(), "hf", tmp_path / "out")
    assert exported.difference is None
    assert exported.notes[-1] == "not compared: transformers is not installed"


def test_overwriting_leaves_no_files_of_the_earlier_export(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asterism.export(concept_encoder(), "safetensors", out)
    (out / "mine.txt").touch()
    asterism.export(small_vit(), "timm", out, overwrite=True)
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "config.json", "mine.txt", "model.safetensors"]


def test_a_model_that_differs_is_not_written(tmp_path: Path) -> None:
    def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
        (folder / "x").touch()
        return Written(((16, 16),))

    def opened(offset: float) -> Target:
        encoder = small_vit()
        model = lambda images: {"cls": outputs(encoder, images)["cls"] + offset}  # noqa: E731
        return Target("wrong", "none", ("x",), write, lambda folder: model)

    for offset, message in ((1e-3, r"differ from the encoder by 1\.0e-03"), (float("nan"), "infinite or undefined")):
        with pytest.raises(UserError, match=message):
            export_encoder(small_vit(), opened(offset), tmp_path / "out")
        assert not list(tmp_path.iterdir())
