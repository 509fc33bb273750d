"""Built-in scenes: drawn images and videos of textured things, for every protocol without a download.

shapes, outlines    the kinds of things, as signed distance fields and as tables of them
surfaces, layout    every number of a scene, drawn from its key: what things are made of, and where they lie
textures, paint     numbers to pixels and masks
stills, videos      the sources
"""

from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.scenes.stills import Scenes
from asterism.data.sources.scenes.videos import Clip, SceneVideos

__all__ = ["CLASSES", "Clip", "SceneVideos", "Scenes"]
