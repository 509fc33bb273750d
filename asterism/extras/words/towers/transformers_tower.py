"""Text encoders of transformers: CLIP, SigLIP, and sentence encoders whose vector is the mean of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.errors import MissingExtra, UserError, reason_of
from asterism.extras.words.towers.frozen_tower import EXTRA, FrozenTower, longest
from asterism.inputs import read_json

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
_FAR = 100_000  # tokens; a longer context in a tokenizer's settings means that it has none
_USUAL_CONTEXT = 512


class TransformersTower(FrozenTower):
    """The vector of a text: CLIP's projected end token, SigLIP's head, else the mean token (sentence encoders)."""

    def __init__(self, name: str, network: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pads = str(network.config.model_type).startswith("siglip")  # trained with padding, which it attends to
        positions = getattr(network.config, "max_position_embeddings", None)
        limits = [limit for limit in (positions, tokenizer.model_max_length) if limit and limit < _FAR]
        super().__init__(name, network, min(limits, default=_USUAL_CONTEXT))

    def tokens(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Int[Tensor, "n t"]]:
        lengths = [len(row) for row in self._tokenizer(list(texts), verbose=False)["input_ids"]]
        text, length = longest(texts, lengths)
        if length > self.context:
            self.say_shortened(text, length)
        made = self._tokenizer(
            list(texts),
            padding="max_length" if self._pads else True,
            truncation=True,
            max_length=self.context,
            return_tensors="pt",
            return_attention_mask=True,
        )
        return made["input_ids"], made["attention_mask"]

    def vectors(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Float[Tensor, "n e"]:
        network = self.network
        made = network(input_ids=tokens, **({} if self._pads else {"attention_mask": mask}))
        embeds = getattr(made, "text_embeds", None)
        if embeds is not None:
            return embeds
        if self._pads:
            return made.pooler_output
        weights = mask[..., None].to(made.last_hidden_state.dtype)
        return (made.last_hidden_state * weights).sum(dim=1) / weights.sum(dim=1)


def load_transformers_tower(name: str, folder: Path) -> TransformersTower:
    """The text encoder of a folder that `save_pretrained` wrote; nothing is downloaded and no code of it is run."""
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise MissingExtra("transformers", EXTRA) from None
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise UserError(
            f"the text model {name} has no tokenizer in {folder}; save it there too, with tokenizer.save_pretrained"
        )
    kind = str(read_json(folder / "config.json").get("model_type"))
    classes = {
        "clip": "CLIPTextModelWithProjection",
        "clip_text_model": "CLIPTextModelWithProjection",
        "siglip": "SiglipTextModel",
        "siglip_text_model": "SiglipTextModel",
        "siglip2": "Siglip2TextModel",
        "siglip2_text_model": "Siglip2TextModel",
    }
    loader = getattr(transformers, classes.get(kind, "AutoModelForTextEncoding"))
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it lists the tensors of the image side, which are not needed
    try:
        network = loader.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever its many formats raise
        raise UserError(f"{name} cannot be loaded as a text model of transformers: {reason_of(error)}") from None
    finally:
        transformers.logging.set_verbosity(before)
    return TransformersTower(name, network, tokenizer)
