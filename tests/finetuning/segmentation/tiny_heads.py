"""Every head at its smallest."""

from typing import Any

from asterism.finetuning.segmentation.segment import Segment, SegmentConfig
from asterism.finetuning.task import Start
from tests.finetuning.tiny import start

SMALL: dict[str, dict[str, Any]] = {
    "linear": {},
    "linear4": {},
    "upernet": {"channels": 8, "auxiliary_channels": 4},
    "fpn": {"pyramid_channels": 8, "channels": 4},
    "mask-transformer": {},
}


def segment(name: str, begin: Start | None = None, /, **settings: Any) -> Segment:
    """A task with this head; `settings` may have a `head` with more settings."""
    more = settings.pop("head", {})
    config = SegmentConfig.parse({"head": {"name": name, **SMALL[name], **more}, **settings})
    return Segment(config, begin or start())
