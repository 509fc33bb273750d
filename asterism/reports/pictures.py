"""What an encoder makes of images, kind by kind, so that one run can be shown alone or several side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor

from asterism.data import Sample, Source, Subset, evaluation_batches, open_source
from asterism.data.parts import DataChoice, SegmentedParts, open_segmented_parts
from asterism.data.sources.videos import open_videos
from asterism.errors import UserError
from asterism.features.mask_tracking import Tracking, follow_objects
from asterism.images.bad_image import BadImage
from asterism.images.centre_crop import center_square, usual_resize
from asterism.images.masks import VOID
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.ops.neighbours import nearest
from asterism.tools.labelled_patches import labelled_patches
from asterism.tools.patch_labellers import Vote
from asterism.tools.segment import Segmenting, segment
from asterism.train.recipe import Recipe
from asterism.train.run import Run
from asterism.types import Features
from asterism.viz import affinity, concepts, pictures
from asterism.viz.mask_overlay import overlay
from asterism.viz.page import Gallery
from asterism.viz.pictures import Pictures

SHOWN = 8  # images in a gallery
SEARCHED = 400  # images to search for neighbours
EXAMPLES = 48  # labelled images to segment by
FRAMES = 16  # followed in a video
_VIDEOS = 4
_SHOWN_FRAMES = (0, 3, 6, 9, 12, 15)
_SIDE = 192  # pixels of pictures that are cut to one size
_PALENESS = 0.75  # share of gray in images below masks, so that the masks' colours can be distinguished


@dataclass(frozen=True)
class Look:
    """An encoder and a few images of the data it is shown with."""

    encoder: Encoder
    source: Source
    choice: DataChoice  # what `source` was opened from
    images: Pictures
    others: UInt8[Tensor, "others 3 h w"]  # for parts that would otherwise repeat the same images
    large: UInt8[Tensor, "b 3 _ _"]  # the same images with the pixels that they have, at a multiple of the size

    @cached_property
    def features(self) -> Features:
        return self.encoder.encode(self.images)

    @cached_property
    def segmented(self) -> SegmentedParts | None:
        """The data with its masks, if it has any."""
        try:
            return open_segmented_parts(self.choice, holdout=0.5, seed=0)
        except UserError:
            return None

    @property
    def middle(self) -> Int64[Tensor, " b"]:
        """The patch in the middle of every image."""
        rows, columns = self.features.grid
        return torch.full((len(self.images),), rows // 2 * columns + columns // 2)


@dataclass(frozen=True)
class Shown:
    """Gallery of pictures: what is the same for every encoder, and what this one makes of it."""

    given: Gallery
    found: Gallery

    @property
    def columns(self) -> Gallery:
        return {**self.given, **self.found}


def open_look(run: Run, data: Recipe) -> Look:
    """The encoder of a run with images of the data that a recipe names, which may be another run's."""
    source = open_source(data.data.path, data.data.split)
    encoder = run.encoder().eval()
    choice = DataChoice(data.data.path, data.data.split)
    images = chosen_images(source, encoder, 2 * SHOWN)
    large = _named_images(source, encoder, _evenly(len(source), 2 * SHOWN), _enlarged(encoder))[0]
    return Look(encoder, source, choice, images[::2], images[1::2] if len(images) > 1 else images, large[::2])


def components(look: Look) -> Shown:
    """Patch tokens, less what all images share at a place, by their three principal components."""
    content = pictures.without_place(look.features.patches)
    drawn = pictures.principal_colors(content, look.features.grid, look.large.shape[-1])
    return Shown({"image": look.large}, {"components": drawn})


def attention(look: Look) -> Shown | None:
    """What the class token looks at in the last block, else all patches; None where attention stays in windows."""
    backbone = look.encoder.backbone
    try:
        with torch.no_grad():
            weights = backbone.attention(look.encoder.normalise(look.images))
    except UserError:
        return None
    maps = affinity.looked_at(weights, look.features.grid, backbone.has_cls).mean(dim=1)
    return Shown({"image": look.large}, {"attention": pictures.heat(maps.cpu(), look.large)})


def likeness(look: Look) -> Shown:
    """The similarity of each patch to the one in the middle."""
    content = pictures.without_place(look.features.patches)
    maps = pictures.similarity_maps(content, look.features.grid, look.middle)
    drawn = affinity.ringed(pictures.heat(maps.cpu(), look.large), look.features.grid, look.middle)
    return Shown({"image": look.large}, {"like the middle": drawn})


def similarity(look: Look) -> Shown:
    """The similarity of each patch to all others together, in the last layer."""
    maps = affinity.aggregated_similarity(look.features.patches, look.features.grid)
    return Shown({"image": look.large}, {"similarity": pictures.heat(maps.cpu(), look.large, span=(0.0, 1.0))})


def concept_places(look: Look) -> Shown | None:
    """Every place in the colour of its strongest concept."""
    if look.features.where is None:
        return None
    return Shown({"image": look.large}, {"concepts": concepts.strongest_concepts(look.features.where, look.large)})


def reconstruction(look: Look) -> Shown | None:
    """Images made from concepts and their places alone."""
    encoder, features = look.encoder, look.features
    if not isinstance(encoder, ConceptEncoder) or encoder.reconstruction is None:
        return None
    assert features.sparse is not None
    assert features.where is not None
    made = concepts.at_size(encoder.reconstruct(features.sparse, features.where).cpu(), look.images.shape[-1])
    return Shown({"image": look.images}, {"reconstruction": pictures.to_uint8(made)})


def segmentation(look: Look) -> Shown | None:
    """Test images labelled patch by patch from a few others, where the data has masks."""
    parts, config = look.segmented, Segmenting.parse({})
    if parts is None:
        return None
    examples = (_with_mask(sample) for sample in chosen_samples(parts.train, EXAMPLES))
    memory = labelled_patches(look.encoder, examples, torch.arange(len(parts.classes)), config)
    label = Vote(memory, config.k, config.temperature)
    tests = [_with_mask(sample) for sample in chosen_samples(parts.test, SHOWN)]
    first = first_color(parts.classes)
    images = torch.stack([_square(image) for image, _ in tests])
    true = torch.stack([_painted(image, mask, first) for image, mask in tests])
    masks = [segment(look.encoder, image, label, memory, config).mask for image, _ in tests]
    found = torch.stack([_painted(image, mask, first) for (image, _), mask in zip(tests, masks, strict=True)])
    return Shown({"image": images, "true": true}, {"found": found})


def tracking(look: Look) -> Shown | None:
    """The masks of first frames carried through videos, where the data has some."""
    try:
        videos = open_videos(look.choice.path)
    except UserError:
        return None
    clips = [clip[:FRAMES] for clip in videos.clips.values() if len(clip) >= FRAMES][:_VIDEOS]
    if not clips:
        return None
    strips = []
    for clip in clips:
        frames = [videos[number] for number in clip]
        given = frames[0].instances
        assert given is not None
        first = torch.where(given == VOID, 0, given).long()
        pixels = [frame.image for frame in frames]
        followed = follow_objects(look.encoder, iter(pixels), first, Tracking.parse({"first_mask": "shares"}))
        masks = [first, *(frame.mask for frame in followed)]
        strips.append(torch.stack([_painted(pixels[i], masks[i], 0) for i in _SHOWN_FRAMES]))
    given, *found = torch.stack(strips, dim=1)
    names = [f"frame {number + 1}" for number in _SHOWN_FRAMES[1:]]
    return Shown({"frame 1, given": given}, dict(zip(names, found, strict=True)))


@dataclass(frozen=True)
class Neighbours:
    """Some images, and for each the most similar others: cosines of the embeddings and places in `images`."""

    images: Pictures
    names: list[str]
    queries: list[int]
    cosines: Float[Tensor, "q k"]
    places: Int64[Tensor, "q k"]


def nearest_images(look: Look, count: int) -> Neighbours:
    """The most similar images, by the cosine of their embeddings; never the query itself."""
    chosen = _evenly(len(look.source), SEARCHED)
    images, names = _named_images(look.source, look.encoder, chosen)
    embeddings = torch.cat([look.encoder.encode_cls(chunk).cpu() for chunk in torch.split(images, 128)])
    queries = _evenly(len(images), SHOWN)
    ranks = min(count + 1, len(images))
    cosines, index = nearest(embeddings[queries], embeddings, ranks)
    others = index != torch.tensor(queries)[:, None]
    others[others.all(dim=1), -1] = False  # copies of the query took its place; all rows have the same length
    shape = (len(queries), ranks - 1)
    places = index[others].view(shape)
    # Those that are shown, with the pixels that they have.
    shown = torch.unique(torch.cat([torch.tensor(queries), places.flatten()]))
    numbers = {key: number for number, key in enumerate(look.source.keys())}
    own = [numbers[names[place]] for place in shown.tolist()]
    photographs, names = _named_images(look.source, look.encoder, own, _enlarged(look.encoder))
    queries = torch.searchsorted(shown, torch.tensor(queries)).tolist()
    return Neighbours(photographs, names, queries, cosines[others].view(shape), torch.searchsorted(shown, places))


def neighbours(look: Look, count: int) -> Shown:
    """The most similar images, as columns."""
    found = nearest_images(look, count)
    columns = {str(rank + 1): found.images[found.places[:, rank]] for rank in range(found.places.shape[1])}
    return Shown({"query": found.images[found.queries]}, columns)


def first_color(classes: list[str]) -> int:
    """The place of class 0 among the colours of masks; the background is not painted."""
    return 0 if classes[0] == "background" else 1


def chosen_images(source: Source, encoder: Encoder, count: int) -> Pictures:
    """Evenly chosen images of a source, cut as an evaluation cuts them."""
    return _named_images(source, encoder, _evenly(len(source), count))[0]


def _enlarged(encoder: Encoder) -> int:
    """How many times as large as for the encoder a photograph is shown at least."""
    return -(-_SIDE // encoder.image_size)


def _named_images(source: Source, encoder: Encoder, places: list[int], enlarged: int = 1) -> tuple[Pictures, list[str]]:
    """Images of a source with their keys, cut as for the encoder, and so many times as large."""
    size, resize = enlarged * encoder.image_size, enlarged * usual_resize(encoder.image_size)
    batches = list(evaluation_batches(Subset(source, places), size, resize=resize))
    return torch.cat([batch.images for batch in batches]), [key for batch in batches for key in batch.keys]


def chosen_samples(source: Source, count: int) -> list[Sample]:
    """Evenly chosen samples of a source; unreadable ones are left out."""
    samples = []
    for index in _evenly(len(source), count):
        try:
            samples.append(source[index])
        except BadImage:
            continue
    return samples


def _evenly(length: int, count: int) -> list[int]:
    count = min(count, length)
    return [i * length // count for i in range(count)]


def _with_mask(sample: Sample) -> tuple[UInt8[Tensor, "3 h w"], Int64[Tensor, "h w"]]:
    assert sample.semantic is not None
    return sample.image, sample.semantic.long()


def _painted(image: UInt8[Tensor, "3 h w"], mask: Integer[Tensor, "h w"], first: int) -> UInt8[Tensor, "3 s s"]:
    """An image with its mask; `first` is the colour of number 0, and what is void stays as it is."""
    factor = -(-_SIDE // min(mask.shape))
    pale = image.float().lerp(image.float().mean(dim=0), _PALENESS).to(torch.uint8)
    large = pale.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)
    numbers = torch.where(mask == VOID, 0, mask.long() + first)
    cells = numbers.repeat_interleave(factor, dim=0).repeat_interleave(factor, dim=1)
    return center_square(overlay(large, cells), _SIDE, _SIDE)


def _square(image: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 s s"]:
    return center_square(pictures.magnified(image[None], _SIDE)[0], _SIDE, _SIDE)
