"""YAML as settings are written in it, with the traps of YAML 1.1 removed.

- 3e-4 is a number and 2026-11-16 is text. YAML 1.1 reads them the other way round.
- A key may occur once in a mapping; YAML 1.1 silently takes the last.
- Nesting, the size after all aliases are replaced, and the digits of a number are limited, so that a short text cannot
  take minutes or gigabytes.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_DEEPEST = 50  # levels of nesting
_MOST_NODES = 100_000  # keys, values and lists after all aliases are replaced
_MOST_DIGITS = 40  # of a whole number


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; every flaw is a ValueError with the line."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _size(node, {}, 0)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise ValueError(" ".join(str(error).split())) from None
    except _Flaw as flaw:
        raise ValueError(str(flaw)) from None
    except Exception as error:  # values that do not fit an explicit tag, such as !!bool maybe, raise almost anything
        raise ValueError(f"a value does not fit its tag ({type(error).__name__})") from None


class _Flaw(Exception):
    """A text that YAML allows and settings do not."""


class _Loader(yaml.SafeLoader):
    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= _DEEPEST:  # refused here, since PyYAML's time grows with the square of the depth
            raise _too_deep(self.line)
        super().fetch_flow_collection_start(TokenClass)

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.levels = getattr(self, "levels", 0) + 1
        if self.levels > _DEEPEST:
            raise _too_deep(self.line)
        try:
            return super().compose_node(parent, index)
        finally:
            self.levels -= 1

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """JSON writes characters beyond 16 bits as two escapes, which YAML reads as two characters."""
        text = super().construct_yaml_str(node)
        try:
            return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _Flaw(
                f"line {node.start_mark.line + 1}: half of a character; a path that is not UTF-8 must be renamed"
            ) from None

    def construct_number(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _MOST_DIGITS:
            raise _Flaw(f"line {node.start_mark.line + 1}: a number of {len(node.value):,} digits is too long")
        return super().construct_yaml_int(node)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_text)


def _size(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """The number of nodes with all aliases replaced; refuses repeated keys, too many nodes and circles."""
    if depth > _DEEPEST:  # an alias inside its own anchor never ends
        raise _too_deep(node.start_mark.line)
    if id(node) in known:
        return known[id(node)]
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size = 1 + sum(_size(child, known, depth + 1) for child in children)
    if size > _MOST_NODES:
        raise _Flaw(f"line {node.start_mark.line + 1}: more than {_MOST_NODES:,} values, counting those behind aliases")
    known[id(node)] = size
    return size


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            name = (key.tag, key.value)
            if name in lines:
                raise _Flaw(
                    f"line {line}: the key {key.value!r} is repeated (first in line {lines[name]}); keep one of them"
                )
            lines[name] = line


def _too_deep(line: int) -> _Flaw:
    return _Flaw(f"line {line + 1}: nested more than {_DEEPEST} levels deep")
