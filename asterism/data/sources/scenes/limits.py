"""What may be asked of the scenes, and the errors for what may not."""

from __future__ import annotations

from asterism.errors import UserError

SMALLEST, LARGEST = 16, 1024  # pixels per side
MOST_OBJECTS = 12
VERSION = 3  # part of every fingerprint; raise it when the same key draws something else


def check_size(size: int) -> None:
    if not SMALLEST <= size <= LARGEST:
        raise UserError(f"scenes: size = {size} pixels; choose {SMALLEST} to {LARGEST} (they look best from 32 to 256)")


def check_count(count: int, what: str) -> None:
    if count < 1:
        raise UserError(f"scenes: {what} = {count}; ask for at least 1")


def check_objects(objects: tuple[int, int]) -> None:
    fewest, most = objects
    if not 1 <= fewest <= most <= MOST_OBJECTS:
        raise UserError(
            f"scenes: objects = {objects}; give the fewest and the most, from 1 to {MOST_OBJECTS}, as in (1, 6)"
        )
