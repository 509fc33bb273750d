"""Words as tokens: the most frequent ones have a number, and every other word is spelt in bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"\w+|[^\w\s]")
PADDING, END = 0, 1  # an end token closes every text
_BYTES = 2  # number of the first byte
_WORDS = _BYTES + 256  # number of the first word


class WordTokens:
    """Texts to numbers and back. Case does not matter. No text is unknown: bytes can spell everything."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self._numbers = {word: _WORDS + place for place, word in enumerate(self.words)}

    @classmethod
    def learn(cls, texts: Iterable[str], most: int) -> WordTokens:
        """The `most` most frequent words of these texts; among equally frequent ones the first in the alphabet."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(split(text))
        return cls(sorted(sorted(counts), key=lambda word: -counts[word])[:most])

    def __len__(self) -> int:
        return _WORDS + len(self.words)

    def __call__(self, text: str) -> list[int]:
        """The numbers of the tokens, with the end."""
        found: list[int] = []
        for word in split(text):
            number = self._numbers.get(word)
            found += [_BYTES + byte for byte in word.encode()] if number is None else [number]
        return [*found, END]


def split(text: str) -> list[str]:
    """Words and punctuation marks in lower case."""
    return _WORD.findall(text.lower())
