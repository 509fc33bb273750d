"""Methods in files that are not installed."""

import shutil
from pathlib import Path

import pytest

from asterism import methods
from asterism.errors import UserError
from asterism.train.building import build_method
from asterism.train.recipe import load_recipe
from asterism.train.run import open_run
from tests.train.tiny import pretrain, resume

PREDICTS_ONE = '''"""The mean of the features approaches one."""
from typing import Literal

from asterism.methods.base import Method, MethodConfig
from asterism.nn.encoder import Encoder
from asterism.types import Losses, ViewSpec


class Settings(MethodConfig):
    name: Literal["one"] = "one"
    target: float = 1.0


class _Shared(Method):
    Config = Settings

    @property
    def views(self):
        return (ViewSpec(size=self.backbone.image_size),)

    def encoder(self):
        return Encoder(self.backbone, self.mean, self.std)


class One(_Shared):
    def loss(self, batch, progress):
        features = self.backbone(batch.views[0].pixels).cls
        return Losses({"one": (features.mean() - self.config.target).square()})
'''
TINY = [
    *["data.path=scenes:size=16,count=40", "data.workers=0", "trainer.steps=4", "trainer.batch_size=8"],
    *["backbone.image_size=16", "backbone.patch_size=8", "backbone.dim=32", "backbone.depth=1", "monitor.knn=null"],
    *["monitor.tensorboard=false", "trainer.accelerator=cpu", "checkpoint.every_steps=2", "method.target=2.0"],
]


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_loaded", {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_method.py"
    path.write_text(PREDICTS_ONE)
    return path


def test_a_run_resumes_with_its_copy_of_the_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretrain(load_recipe(str(file), TINY), tmp_path / "run")
    whole = run.weights.read_bytes()
    shutil.rmtree(run.checkpoints / "step-00000004")
    file.unlink()
    monkeypatch.setattr(methods, "_loaded", {})
    assert open_run(run.path).config["method"]["target"] == 2.0
    assert not methods._loaded, "reading a run must not run its file"
    with pytest.raises(UserError, match="one is defined by a file of the run, which only pretrain --resume executes"):
        build_method(run.recipe)
    assert resume(run.path).weights.read_bytes() == whole

    shutil.rmtree(run.checkpoints / "step-00000004")
    monkeypatch.setattr(methods, "_loaded", {})
    (run.path / "method.py").write_text(PREDICTS_ONE + "# edited\n")
    with pytest.raises(UserError, match=r"method.py is not the file that the run was started with"):
        resume(run.path)


def test_a_method_has_the_name_that_it_gives_itself_and_is_known_by_it(file: Path) -> None:
    assert load_recipe(str(file), TINY).method.name == "one"
    assert "one" in methods.method_names()
    file.write_text(PREDICTS_ONE.replace("    name: Literal", "    # name: Literal"))
    assert load_recipe(str(file), TINY).method.name == "my_method"
    file.write_text(PREDICTS_ONE)
    with pytest.raises(UserError, match=r"method.name = 'two', but .* defines 'one'"):
        load_recipe(str(file), [*TINY, "method.name=two"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no method; it must define exactly one class derived from asterism.methods.base.Method"),
        (PREDICTS_ONE + "\nclass Two(_Shared):\n    pass\n", "defines One and Two; it must define exactly one"),
        ("import nothing_like_this", "cannot be imported: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("def f(:", "cannot be imported: SyntaxError"),
        (PREDICTS_ONE.replace("def loss", "def lost"), "One in .* lacks loss"),
        (PREDICTS_ONE.replace('"one"', '"dino"'), "is called 'dino', as an installed one is; give it another name"),
    ],
)
def test_mistakes(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_recipe(str(file), TINY)
