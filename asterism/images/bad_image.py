"""The error for an image that cannot be read."""

from __future__ import annotations


class BadImage(Exception):
    """An image that cannot be used, and why. Readers skip it and record it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"
