"""Views of an image: random crops and colours, their parameters drawn first from a key and then applied."""

from asterism.data.views.pipeline import Views
from asterism.data.views.sample import Colors, Crop, ViewParameters

__all__ = ["Colors", "Crop", "ViewParameters", "Views"]
