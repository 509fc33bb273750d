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
