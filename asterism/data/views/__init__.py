"""Views of an image: random crops and colours. Their parameters are first drawn from a key, then applied."""

from asterism.data.views.pipeline import Views
from asterism.data.views.sample import Colors, Crop, ViewParameters

__all__ = ["Colors", "Crop", "ViewParameters", "Views"]
