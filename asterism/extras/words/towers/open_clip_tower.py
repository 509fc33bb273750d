"""Text encoders of open_clip: from a folder with its configuration, or published weights by name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from asterism.errors import MissingExtra, UserError, reason_of, unknown
from asterism.extras.words.towers.frozen_tower import EXTRA, FrozenTower
from asterism.nn.weights.hub import TEXT_INSTEAD, from_the_cache_only, not_downloaded, without_retries

PREFIX = "open_clip:"  # before MODEL, MODEL:WEIGHTS or MODEL:FILE


class OpenClipTower(FrozenTower):
    """The vector that open_clip compares with images."""

    def __init__(self, name: str, network: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._padding = int(tokenizer([""])[0, -1])
        super().__init__(name, network, int(getattr(network, "context_length", None) or tokenizer.context_length))

    def tokens(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Int[Tensor, "n t"]]:
        made = self._tokenizer(list(texts), context_length=self.context)
        # It truncates silently. One more place than the context shows whether a text needs it.
        longer = self._tokenizer(list(texts), context_length=self.context + 1)
        for text, row in zip(texts, longer.tolist(), strict=True):
            if row[-1] != self._padding:
                self.say_shortened(text, self.context + 1)
                break
        return made, (made != self._padding).long()

    def vectors(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Float[Tensor, "n e"]:
        return self.network.encode_text(tokens)


def load_open_clip_tower(name: str) -> OpenClipTower:
    """`open_clip:MODEL` with random weights is refused: WEIGHTS is a published tag or a file."""
    place = name.removeprefix(PREFIX)
    open_clip = _package()
    model, _, weights = place.partition(":")
    if model not in open_clip.list_models():
        raise unknown("model of open_clip", model, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not Path(weights).is_file() and weights not in tags:
        raise unknown(f"weights of open_clip's {model}", weights, tags or ["a file"])
    with without_retries(), _silent():
        try:
            network = open_clip.create_model(model, pretrained=weights, device="cpu")
        except Exception as error:  # of its HTTP library, or of a file that is none
            raise not_downloaded(name, error, TEXT_INSTEAD) from None
    return OpenClipTower(name, network, open_clip.get_tokenizer(model))


def load_open_clip_folder(name: str, folder: Path) -> OpenClipTower:
    """A folder with `open_clip_config.json` and weights, as on the Hugging Face hub."""
    open_clip = _package()
    try:
        with from_the_cache_only(), _silent():  # its configuration can name networks of the hub
            network = open_clip.create_model(f"local-dir:{folder}", device="cpu")
            tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    except Exception as error:  # whatever its many formats raise
        raise UserError(f"{name} cannot be loaded as a model of open_clip: {reason_of(error)}") from None
    return OpenClipTower(name, network, tokenizer)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """It logs an error besides raising it."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _package() -> Any:
    try:
        import open_clip
    except ImportError:
        raise MissingExtra("open_clip", EXTRA) from None
    return open_clip
