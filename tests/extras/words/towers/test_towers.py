"""Text towers: our own, and those of transformers and open_clip from folders."""

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from asterism.errors import UserError
from asterism.extras.words.towers.build import build_tower, load_frozen_tower, rebuild_tower
from asterism.extras.words.towers.own_tower import OwnTower, TextConfig
from asterism.extras.words.towers.tower import TextShortened
from asterism.extras.words.towers.words import WordTokens

TEXTS = ["a red fish left of a key", "a key", "a blue fish"]


def own(context: int = 16) -> OwnTower:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tower = build_tower(TextConfig(dim=16, depth=1, heads=2, context=context), TEXTS)
    assert isinstance(tower, OwnTower)
    return tower.eval()


def test_words_and_bytes() -> None:
    tokens = WordTokens.learn(TEXTS, 3)
    assert tokens.words == ("a", "fish", "key")  # by frequency, then by alphabet
    assert tokens("A Fish!") == [258, 259, 2 + ord("!"), 1]
    assert tokens("é") == [2 + 0xC3, 2 + 0xA9, 1]


def test_padding_and_order() -> None:
    """A text has the same vector alone and next to longer ones; the order of words matters."""
    tower = own()
    together, alone = tower.encode(TEXTS), torch.cat([tower.encode([text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    a, b = tower.encode(["a fish left of a key", "a key left of a fish"])
    assert (a - b).abs().max() > 1e-4


def test_long_texts_are_truncated_and_said_once() -> None:
    tower = own(context=4)
    with pytest.warns(TextShortened, match="has 7 tokens and the text tower reads 4"):
        first = tower.encode(["a red fish left of a", "a red fish left of a key"])
    tower.encode(["a red fish left of a key key key"])  # a second warning would be an error here
    torch.testing.assert_close(first[0], first[1])


def test_the_own_tower_again_from_its_description() -> None:
    tower = own()
    again = rebuild_tower(json.loads(json.dumps(tower.describe())))
    again.load_state_dict(tower.state_dict())
    torch.testing.assert_close(again.eval().encode(TEXTS), tower.encode(TEXTS))
    assert again.fingerprint == tower.fingerprint


def clip_folder(folder: Path) -> Path:
    import transformers

    folder.mkdir()
    words = [
        "<|startoftext|>",
        "<|endoftext|>",
        *(f"{letter}{end}" for letter in "abcdefhiklrst" for end in ("", "</w>")),
    ]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.CLIPTextConfig(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=12,
            projection_dim=8,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
        transformers.CLIPTextModelWithProjection(config).save_pretrained(folder)
    transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt")).save_pretrained(folder)
    return folder


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    import transformers

    folder = clip_folder(tmp_path / "clip")
    tower = load_frozen_tower(str(folder))
    assert (tower.dim, tower.context, tower.frozen) == (8, 12, True)
    assert not list(tower.parameters())
    assert not tower.state_dict()
    network = transformers.CLIPTextModelWithProjection.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        made = network(**tokenizer(["a fish"], return_tensors="pt")).text_embeds
    torch.testing.assert_close(tower.encode(["a fish"]), torch.nn.functional.normalize(made, dim=1))
    torch.testing.assert_close(tower.encode(["a fish", "a red ear"])[:1], tower.encode(["a fish"]), rtol=0, atol=1e-6)
    with pytest.warns(TextShortened):
        tower.encode(["a fish and a red bird and a table"])
    assert rebuild_tower(tower.describe()).fingerprint == tower.fingerprint
    with pytest.raises(UserError, match="its weights differ"):
        rebuild_tower(tower.describe() | {"fingerprint": "0"})
    for file in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / file).unlink(missing_ok=True)
    with pytest.raises(UserError, match="has no tokenizer"):
        load_frozen_tower(str(folder))


def test_a_folder_of_open_clip(tmp_path: Path) -> None:
    import open_clip
    from safetensors.torch import save_file

    from asterism.extras.words.towers.open_clip_tower import OpenClipTower

    vision = {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    config = {"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        network = open_clip.CLIP(8, vision, text).eval()
        save_file(network.state_dict(), tmp_path / "open_clip_model.safetensors")
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
        tower = load_frozen_tower(str(tmp_path))
    assert isinstance(tower, OpenClipTower)
    assert (tower.dim, tower.context) == (8, 16)
    with torch.no_grad():
        made = network.encode_text(open_clip.get_tokenizer("ViT-B-32")(["a red fish"], context_length=16))
    torch.testing.assert_close(tower.encode(["a red fish"]), torch.nn.functional.normalize(made, dim=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tower.encode(["fish " * 14])  # with start and end it fits exactly
    with pytest.warns(TextShortened):
        tower.encode(["fish " * 15])


@pytest.mark.parametrize("name", ["hf:nobody/nothing-of-this-name", "open_clip:ViT-B-32:openai"])
def test_a_hub_that_cannot_be_reached(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.nn.weights.hub._answers", lambda server: False)
    if name.startswith("open_clip"):
        monkeypatch.setattr("open_clip.create_model", _unreachable)
    before = time.monotonic()
    with pytest.raises(UserError, match=r"could not be downloaded.*--text own.*asterism\[text\]"):
        load_frozen_tower(name)
    assert time.monotonic() - before < 20


def _unreachable(*arguments: object, **more: object) -> None:
    raise OSError("no route to host")


def test_a_file_does_not_choose_what_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description comes from a file of anyone. Only a name that the user gives is fetched."""
    asked: list[object] = []

    def no_network(*words: object, **more: object) -> None:
        asked.append(words)
        raise OSError("no route to host")

    monkeypatch.setattr("socket.getaddrinfo", no_network)
    monkeypatch.setattr("asterism.nn.weights.hub._answers", lambda server: not asked.append(server))
    described = {"kind": "frozen", "name": "hf:nobody/nothing-of-this-name", "fingerprint": "0"}
    with pytest.raises(UserError, match=r"not in the local cache, and .* must not be asked for what a file names"):
        rebuild_tower(described)
    assert not asked
    with pytest.raises(UserError, match="could not be downloaded"):
        rebuild_tower(described, "hf:nobody/nothing-of-this-name")
    assert asked


@pytest.mark.parametrize(
    "change",
    [{"text_cfg": {"hf_model_name": "nobody/nothing"}}, {"vision_cfg": {"timm_model_name": "hf-hub:nobody/x"}}],
)
def test_a_folder_of_open_clip_cannot_name_networks_of_the_hub(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("open_clip")
    asked: list[object] = []

    def no_network(*words: object, **more: object) -> None:
        asked.append(words)
        raise OSError("no route to host")

    monkeypatch.setattr("socket.getaddrinfo", no_network)
    text = {"context_length": 16, "vocab_size": 99, "width": 16, "heads": 2, "layers": 1}
    vision = {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16}
    config = {"embed_dim": 8, "vision_cfg": vision, "text_cfg": text} | change
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    with pytest.raises(UserError, match="cannot be loaded as a model of open_clip"):
        load_frozen_tower(str(tmp_path))
    assert not asked
