"""Built-in scenes: drawn images and videos of textured things, for every protocol without a download.

shapes, distance   what kinds of things there are, as signed distance fields
outlines           their fields as tables, with areas
surfaces, backgrounds, tiles, lookup   patterns, grounds, noise, and how tables are read
layout             every number of a scene, drawn from its key
paint              numbers to pixels and masks
stills, videos     the sources
"""

from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.scenes.stills import Scenes
from asterism.data.sources.scenes.videos import Clip, SceneVideos

__all__ = ["CLASSES", "Clip", "SceneVideos", "Scenes"]
