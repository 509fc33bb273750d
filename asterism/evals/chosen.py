"""The protocols that a user requested, with their settings checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.config import with_overrides
from asterism.errors import UserError, unknown
from asterism.evals import protocol_class
from asterism.evals.base import ProtocolConfig


def chosen_protocols(names: Sequence[str], overrides: Sequence[str] = ()) -> dict[str, ProtocolConfig]:
    """Settings by protocol, from `protocol.constant=value` strings."""
    if not names:
        raise UserError("name at least one protocol, for example knn; see `asterism list protocols`")
    kinds = {name: protocol_class(name) for name in names}
    changes = with_overrides({}, overrides)
    for section in changes:
        if section not in kinds:
            raise unknown("section in a setting (it must be one of the requested protocols):", section, kinds)
    return {name: kind.Config.parse(changes.get(name, {}), section=name) for name, kind in kinds.items()}
