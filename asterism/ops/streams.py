"""A register of the random draws: for each, the number that separates it from the other draws of the same key.

A draw is keyed by `fold(key, stream, …)`. Two draws that a run makes from one key need different streams, or they would
give the same numbers. Each class lists the streams of one key; a test finds numbers that a class uses twice, and folds
with a number that is not listed. A stream keeps its number for ever: with another one, a seeded run has other losses.
"""

from __future__ import annotations

# Streams of an image's key in pretraining, fold(seed, epoch, image). Small numbers are those of its views, which stay
# below `MOST_VIEWS`. A run has one method, so two methods may use the same number.

MOST_VIEWS = 15


class Flsl:
    """An image's key."""

    QUERIES = 0x0F


class Ibot:
    """An image's key."""

    MASKS = 0x1B


class Mae:
    """An image's key."""

    MASK = 0x3A


class Sop:
    """An image's key."""

    MASKS = 0x50
    STORED_PATCH = 0x51  # the patch of an image that enters the memory


class Stellar:
    """An image's key."""

    NOISE = 0x51  # which patches are masked
    FOCUS = 0x52  # where the visible patches concentrate


class Cribo:
    """An image's key."""

    SEEDS = 0x60  # initial centroids


class Vq:
    """An image's key, plus the place of a patch."""

    SPARE = 0x7E  # replacements for unused codes


class View:
    """fold(image's key, view)."""

    DROPPED_PATHS = 0x5D


class BlockMasks:
    """The key of one view's mask."""

    SHARE = 1
    PLACES = 2


# Streams of a run's seed.


class SopAnchors:
    """fold(seed, stream, step, task)."""

    IMAGES = 0x52
    PATCHES = 0x53


class OwnBatch:
    """fold(seed, step, stream, position) in `make_batch` without an index."""

    POSITION = 1


class Labelled:
    """fold(seed, stream) in fine-tuning."""

    LABEL_SHARE = 1
    VALIDATION = 2
    PROBE = 3  # which images and patches of many


class Probe:
    """fold(seed, stream) of a linear or attentive probe."""

    WEIGHTS = 1
    ORDER = 2


class SegmentationProbe:
    """fold(seed, stream) of `linear-seg`."""

    ORDER = 1
    WEIGHTS = 2


class Unlabelled:
    """fold(seed, stream) of an evaluation without labels."""

    HELD_OUT = 0x4D


# Streams of an image's key in a task, fold(seed, epoch, image).


class Classification:
    """An image's key."""

    MIXING = 0x31


class Segmentation:
    """An image's key."""

    UPERNET = 0x41  # dropped channels
    UPERNET_AUXILIARY = 0x42
    FPN = 0x43
    MASK_TRANSFORMER = 0x44  # dropped paths
    AUGMENTATION = 0x51


class Detection:
    """An image's key."""

    PROPOSALS = 0x41
    REGIONS = 0x42
    AUGMENTATION = 0x43


class Caption:
    """fold(seed, image)."""

    HELD_OUT = 0x7E


# Streams of draws that no seed changes.


class Monitor:
    """fold(stream, number of images)."""

    KNN = 0
    VIEW_RETRIEVAL = 1


class Hash:
    """fold(number, stream): a number as random bits."""

    BITS = 0


class RandomConvolutions:
    """fold(stream, level)."""

    WEIGHTS = 7


class FewPatches:
    """fold(stream, number of patches)."""

    PLACES = 0x9C


# Streams of the built-in scenes.


class ScenesSeed:
    """fold(seed, stream, number of a scene): no key of one stream occurs in another."""

    TRAIN = 0
    VAL = 1
    TEST = 2
    VIDEOS = 3
    BACKGROUNDS = 9  # from another scene, as in ImageNet-9


class Scene:
    """A scene's key."""

    LABEL = 0
    LAYOUT = 1
    MOTION = 2
    SENTENCES = 0x5E
    PAIRS = 0xA1  # scenes that differ in one respect


class Outlines:
    """fold(stream, kind, variant); another number gives other variants of every kind."""

    PROPORTIONS = 20_231
