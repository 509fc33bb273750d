"""From the protocols that a user requested to results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from asterism.config import with_overrides
from asterism.data.parts import DataChoice
from asterism.errors import UserError, unknown
from asterism.evals import protocol_class
from asterism.evals.base import ProtocolConfig
from asterism.evals.result import Result, data_used
from asterism.nn.encoder import Encoder
from asterism.types import Model

_WITHOUT_PIXELS = "no raw-pixel baseline: pixels have no concepts, which are measured here"


def chosen_protocols(names: Sequence[str], overrides: Sequence[str] = ()) -> dict[str, ProtocolConfig]:
    """Settings by protocol, from `protocol.constant=value` strings, checked before any work is done."""
    if not names:
        raise UserError("name at least one protocol, for example knn; see `asterism list protocols`")
    kinds = {name: protocol_class(name) for name in names}
    changes = with_overrides({}, overrides)
    for section in changes:
        if section not in kinds:
            raise unknown("section in a setting (it must be one of the requested protocols):", section, kinds)
    return {name: kind.Config.parse(changes.get(name, {}), section=name) for name, kind in kinds.items()}


def run_protocol(
    name: str,
    config: ProtocolConfig,
    choice: DataChoice,
    encoder: Encoder,
    model: Model,
    *,
    baselines: bool = False,
    against: Mapping[str, Encoder] = MappingProxyType({}),
) -> Result:
    """Measure an encoder and, if requested, its baselines and other encoders, with the same data and constants."""
    start = time.monotonic()
    kind = protocol_class(name)
    evaluation = kind(config, kind.open_parts(config, choice))
    values = dict(evaluation.measure(encoder.eval()))
    seconds = time.monotonic() - start
    others = evaluation.baselines(encoder) if baselines else {}
    return Result(
        protocol=name,
        values=values,
        constants=evaluation.constants(encoder),
        model=model,
        train=data_used(evaluation.parts.train),
        test=data_used(evaluation.parts.test),
        seconds=round(seconds, 3),
        baselines={title: dict(evaluation.measure(other.eval())) for title, other in (others | dict(against)).items()},
        notes=(*evaluation.notes(), *([_WITHOUT_PIXELS] if others and "pixels" not in others else [])),
    )
