"""The parts of a report that show pictures, each with one sentence of explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from asterism.data import Views
from asterism.errors import MissingExtra, UserError
from asterism.images.palette import palette
from asterism.methods.base import Method
from asterism.ops.normalise import denormalise
from asterism.ops.random import fold
from asterism.reports.pictures import (
    EXAMPLES,
    FRAMES,
    SEARCHED,
    Look,
    Neighbours,
    Shown,
    attention,
    chosen_samples,
    components,
    concept_places,
    first_color,
    likeness,
    nearest_images,
    neighbours,
    open_look,
    reconstruction,
    segmentation,
    similarity,
    tracking,
)
from asterism.train.building import load_method
from asterism.train.recipe import Recipe
from asterism.train.run import Run
from asterism.viz import affinity, charts, concepts, page, pictures
from asterism.viz.bar import Bar
from asterism.viz.layers import FEWEST, layers_of, tokens_by_layer
from asterism.viz.page import Section, Tile

_FEW = 4  # images in a gallery with many columns
_NEIGHBOURS = 6
_LAYERS = 7  # columns of a gallery by layer
_HEADS = 8
_CLOUDS, _DOTS = 4, 400  # layers laid out by t-SNE, and tokens in each
_LEGEND = 24  # classes that are named below segmentations

_COMPONENTS = (
    "Patch tokens, less what all these images share at a place, in the colours of their three principal components: "
    "similar patches have similar colours."
)
_ATTENTION = "What the class token (all patches, where there is none) looks at in the last block, mean over heads."
_SIMILARITY = (
    "The similarity of each patch to all others together, in the last layer: where tokens form objects, a place is as "
    "bright as its object is large."
)
_SEGMENTATION = (
    f"Nothing is trained: every patch takes the labels of the patches most like it in {EXAMPLES} labelled images."
)
_TRACKING = "The masks of the first frame, propagated to the following frames by their most similar patches."


def run_sections(run: Run, recipe: Recipe) -> list[Section]:
    """All parts that a run can show; one whose data or weights are gone still has a report."""
    try:
        look = open_look(run, recipe)
    except UserError as error:
        return [Section("Pictures", page.note(f"No pictures: {error}"))]
    own, views = method_parts(run, recipe, look)
    of_look = (_features, _what_is_where, _concept_by_concept)
    more = (_segmentations, _tracked, _nearest, _by_layer, _plane, _probes, _heads)
    parts: list[Callable[[], Section | None]] = [
        *(partial(draw, look) for draw in of_look),
        own,
        *(partial(draw, look) for draw in more),
        views,
    ]
    return list(_drawn(parts))


def method_parts(
    run: Run, recipe: Recipe, look: Look
) -> tuple[Callable[[], Section | None], Callable[[], Section | None]]:
    """What only the method can show, and its views; a note if it lacks something, such as a teacher that was moved."""
    try:
        method = load_method(run)
    except UserError as error:
        note = Section("The method", page.note(f"No pictures: {error}"))
        return lambda: note, lambda: None
    return partial(_of_the_method, method, recipe, look), partial(_views, method, recipe, look)


def compared_sections(runs: Mapping[str, Run], data: Recipe) -> list[Section]:
    """Several encoders on the same images."""
    try:
        looks = {name: open_look(run, data) for name, run in runs.items()}
    except UserError as error:
        return [Section("Pictures", page.note(f"No pictures: {error}"))]
    kinds: dict[str, tuple[Callable[[Look], Shown | None], str]] = {
        "Components": (components, _COMPONENTS),
        "Attention": (attention, _ATTENTION),
        "Aggregated similarity": (similarity, _SIMILARITY),
        "Concepts": (concept_places, "Every place in the colour of its strongest concept."),
        "Reconstructions": (reconstruction, "Images made from concepts and their places alone."),
        "Segmentations": (segmentation, _SEGMENTATION),
        "Tracked masks": (_last_frame, _TRACKING),
        "Nearest images": (partial(neighbours, count=2), "The most similar images, by the cosine of embeddings."),
    }
    return list(_drawn([partial(_compared, looks, title, *kind) for title, kind in kinds.items()]))


def _compared(
    looks: Mapping[str, Look], title: str, draw: Callable[[Look], Shown | None], explanation: str
) -> Section | None:
    """What is given once, then what each encoder makes of it, under its name."""
    columns: dict[str, Tensor] = {}
    for name, look in looks.items():
        shown = draw(look)
        if shown is not None:
            columns = columns or dict(shown.given)
            columns |= {f"{name} {key}" if len(shown.found) > 1 else name: found for key, found in shown.found.items()}
    return Section(title, page.gallery(columns), explanation) if columns else None


def _drawn(parts: list[Callable[[], Section | None]]) -> Iterator[Section]:
    with Bar("pictures", len(parts)) as bar:
        for part in parts:
            section = part()
            if section is not None:
                yield section
            bar.advance(1)


def _features(look: Look) -> Section:
    shown = [part for part in (components(look), attention(look), likeness(look)) if part is not None]
    columns = {name: drawn for part in shown for name, drawn in part.columns.items()}
    looks = f"; what {_asking(look)} at in the last block" if "attention" in columns else ""
    return Section(
        "What the features see",
        page.gallery(columns),
        f"{_COMPONENTS[:-1]}{looks}; the similarity of each patch to the one in the green ring.",
    )


def _what_is_where(look: Look) -> Section | None:
    places, made = concept_places(look), reconstruction(look)
    if places is None or look.features.sparse is None:
        return None
    columns, quality = dict(places.columns), "This encoder has no decoder, so there are no reconstructions."
    if made is not None:
        columns |= made.found
        decibels = concepts.reconstruction_quality(made.found["reconstruction"].float() / 255, look.images).mean()
        quality = f"The image made from concepts and places alone reaches {decibels:.1f} dB (PSNR, mean)."
    count = look.features.sparse.shape[1]
    return Section(
        "What is where",
        page.gallery(columns),
        f"Every place in the colour of the strongest of {count} concepts. {quality}",
    )


def _concept_by_concept(look: Look) -> Section | None:
    if look.features.where is None:
        return None
    where, large = look.encoder.encode(look.others[:_FEW]).where, pictures.magnified(look.others[:_FEW])
    assert where is not None
    together = concepts.strongest_concepts(where, large)
    rows = [
        page.tiles([Tile(image, "image"), Tile(sheet, "all concepts"), *maps], 104)
        for image, sheet, maps in zip(large, together, concepts.taken_apart(where, large), strict=True)
    ]
    return Section(
        "Concept by concept",
        "".join(rows),
        "All concepts together, then one by one: the stronger the colour, the more of a place belongs to the concept; "
        "below, its share of the image.",
    )


@torch.no_grad()
def _of_the_method(method: Method, recipe: Recipe, look: Look) -> Section | None:
    drawn = method.pictures(look.encoder.normalise(look.images).cpu(), key=fold(recipe.trainer.seed, len(look.images)))
    if not drawn:
        return None
    mean, std = recipe.data.mean, recipe.data.std
    shown = {name: pictures.to_uint8(denormalise(pixels, mean, std)) for name, pixels in drawn.items()}
    return Section("What the method makes of images", page.gallery({"image": look.images} | shown), method.shows)


def _segmentations(look: Look) -> Section | None:
    shown = segmentation(look)
    if shown is None or look.segmented is None:
        return None
    classes = look.segmented.classes
    first = first_color(classes)
    colors = palette(len(classes) + first)
    painted = {name: colors[number + first] for number, name in enumerate(classes) if number + first}
    names = page.legend(painted) if len(painted) <= _LEGEND else ""
    return Section("Segmentations", page.gallery(shown.columns) + names, _SEGMENTATION)


def _tracked(look: Look) -> Section | None:
    shown = tracking(look)
    return None if shown is None else Section("Tracked masks", page.gallery(shown.columns), _TRACKING)


def _last_frame(look: Look) -> Shown | None:
    shown = tracking(look)
    return None if shown is None else Shown(shown.given, {f"frame {FRAMES}": list(shown.found.values())[-1]})


def _nearest(look: Look) -> Section:
    return Section(
        "Nearest images",
        "".join(page.tiles(row, 128) for row in _named_neighbours(nearest_images(look, _NEIGHBOURS))),
        f"An image, and the most similar of {min(SEARCHED, len(look.source))}, with their names and the cosine of the "
        "embeddings.",
    )


def _named_neighbours(found: Neighbours) -> Iterator[list[Tile]]:
    for query, cosines, places in zip(found.queries, found.cosines.tolist(), found.places.tolist(), strict=True):
        alike = zip(cosines, places, strict=True)
        yield [
            Tile(found.images[query], found.names[query]),
            *(Tile(found.images[place], f"{cosine:.2f} {found.names[place]}") for cosine, place in alike),
        ]


def _by_layer(look: Look) -> Section:
    images = look.images[:_FEW]
    layers = layers_of(look.encoder.backbone, _LAYERS)
    return Section(
        "Aggregated similarity by layer",
        page.gallery({"image": images} | affinity.aggregated_similarity_by_layer(look.encoder, images, layers)),
        "The similarity of each patch to all others together, from the patch embedding (layer 0) to the last block: "
        "as tokens come to form objects, the map falls into parts, each as bright as it is large.",
        folded=True,
    )


def _plane(look: Look) -> Section | None:
    """t-SNE; the dots have the colours of their patches, which are shown below."""
    rows, columns = look.features.grid
    backbone, images = look.encoder.backbone, look.images[: max(1, _DOTS // (rows * columns))]
    if len(images) * rows * columns < FEWEST:
        return None
    layers = [layer for layer in layers_of(backbone, _CLOUDS) if layer or not backbone.first_block]  # of one grid
    try:
        places = tokens_by_layer(look.encoder, images, layers)
    except MissingExtra as error:
        return Section("Patch tokens in the plane", page.note(str(error)))
    colors = pictures.principal_colors(pictures.without_place(look.features.patches), look.features.grid, rows)
    dots = colors[: len(images)].permute(0, 2, 3, 1).reshape(-1, 3)
    clouds = "".join(charts.dot_cloud(name, plane, dots) for name, plane in places.items())
    shown = [
        tile
        for number, (image, own) in enumerate(zip(images, colors[: len(images)], strict=True), start=1)
        for tile in (Tile(image, f"image {number}"), Tile(own, "patches"))
    ]
    return Section(
        "Patch tokens in the plane",
        f'<div class="charts clouds">{clouds}</div>{page.tiles(shown, 64)}',
        f"The patch tokens of {len(images)} images laid out by t-SNE, so that similar ones are close. A dot has the "
        "colour of its patch, shown below with the image, and can be followed from layer to layer.",
        folded=True,
    )


def _probes(look: Look) -> Section | None:
    """A patch in the middle, in some layers, and one near the corner."""
    images, depth = look.images[:_FEW], look.encoder.backbone.depth
    rows, columns = look.features.grid
    middle, corner = look.middle[:_FEW], torch.full((len(images),), rows // 8 * columns + columns // 8)
    asked = {f"middle, layer {block + 1}": (middle, block) for block in sorted({0, depth // 2, depth - 1})}
    asked[f"corner, layer {depth}"] = (corner, depth - 1)
    try:
        drawn = {name: affinity.probe_attention(look.encoder, images, *asking) for name, asking in asked.items()}
    except UserError:  # attention that stays in windows has no map
        return None
    return Section(
        "Attention of a patch",
        page.gallery({"image": images} | drawn),
        "What the patch in the green ring looks at, mean over heads.",
        folded=True,
    )


def _heads(look: Look) -> Section | None:
    images = look.images[:_FEW]
    try:
        heads = affinity.attention_by_head(look.encoder, images)
    except UserError:  # attention that stays in windows has no map
        return None
    return Section(
        "Attention of every head",
        page.gallery({"image": images} | dict(list(heads.items())[:_HEADS])),
        f"What {_asking(look)} at in the last block, head by head.",
        folded=True,
    )


def _views(method: Method, recipe: Recipe, look: Look) -> Section:
    views = Views(method.views)
    images = [sample.image for sample in chosen_samples(look.source, _FEW)]
    keys = [fold(recipe.trainer.seed, number) for number in range(len(images))]
    crops = views.apply(images, views.sample([(image.shape[1], image.shape[2]) for image in images], keys))
    return Section(
        "Views that the method trains on",
        page.gallery({f"view {i + 1}": same for i, same in enumerate(crops)}),
        "One image per row, cropped and recoloured at random, as in training.",
        folded=True,
    )


def _asking(look: Look) -> str:
    return "the class token looks" if look.encoder.backbone.has_cls else "patches look"
