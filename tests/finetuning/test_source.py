"""The source of a fine-tuned run."""

from __future__ import annotations

import pytest

from asterism.errors import UserError
from asterism.finetuning.recipe import load_finetune_recipe


def test_the_source_is_the_argument_and_not_a_setting() -> None:
    """It used to be ignored without a word."""
    with pytest.raises(UserError, match=r"source\.path cannot be set"):
        load_finetune_recipe("a.pth", task="classify", overrides=["data.path=photos", "source.path=b.pth"])
