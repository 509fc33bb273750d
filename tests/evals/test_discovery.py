from __future__ import annotations

import pytest

from asterism.errors import UserError
from asterism.evals import protocol_class, protocol_names, protocol_summaries
from asterism.evals.base import Evaluation, ProtocolConfig


def test_every_protocol_is_complete() -> None:
    assert "knn" in protocol_names()
    for name, summary in protocol_summaries().items():
        kind = protocol_class(name)
        assert issubclass(kind, Evaluation)
        assert issubclass(kind.Config, ProtocolConfig)
        assert kind.__module__.rpartition(".")[2].replace("_", "-") == name
        assert summary.endswith("."), f"the docstring of {name} begins with a sentence on one line"


def test_helper_files_are_not_protocols() -> None:
    assert not {"base", "features", "settings", "result", "run", "baselines"} & set(protocol_names())


def test_an_unknown_protocol_suggests_similar_ones() -> None:
    with pytest.raises(UserError, match="unknown protocol 'kn'; did you mean 'knn'"):
        protocol_class("kn")
