"""The check that view sizes fit a backbone."""

from __future__ import annotations

from asterism.errors import UserError


def check_view_size(setting: str, size: int, patch_size: int) -> None:
    if size % patch_size:
        raise UserError(
            f"views of {size} pixels do not divide into patches of {patch_size}; set method.{setting} to a multiple of "
            f"{patch_size}"
        )
