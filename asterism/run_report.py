"""One self-contained page about a run, or about several side by side: scores, curves, and what the features see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from asterism.config import write_yaml
from asterism.data import BadImage, Sample, Source, Subset, Views, evaluation_batches, open_source
from asterism.errors import UserError
from asterism.evals.result import Result, read_results, write_atomically
from asterism.methods.base import Method
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.ops.neighbours import nearest
from asterism.ops.random import fold
from asterism.train.loop import load_method
from asterism.train.recipe import Recipe
from asterism.train.run import Run, open_run
from asterism.viz import charts, concepts, page, pictures
from asterism.viz.pictures import Pictures

_SHOWN = 8  # images in each gallery
_TAKEN_APART = 4  # images whose every concept is shown
_NEIGHBOURS = 6
_SEARCHED = 600  # images among which neighbours are looked for
_CURVES = {
    "Loss": ("loss",),
    "Online k-NN accuracy (%)": ("knn",),
    "Entropy of targets and predictions (nats)": ("target_entropy", "prediction_entropy"),
    "Spread of the features": ("feature_std",),
    "Effective rank of the features": ("effective_rank",),
    "Gradient norm": ("gradient_norm",),
    "Learning rate": ("lr",),
    "Images per second": ("images_per_second",),
    "Share of time waiting for data": ("data_wait_share",),
}


def write_report(paths: Sequence[Path]) -> Path:
    """Write `report.html` into the run's folder; a comparison goes beside the first run, named after all of them."""
    if not paths:
        raise UserError("name at least one run folder")
    runs = [open_run(path) for path in paths]
    if len(runs) == 1:
        target, text = runs[0].path / "report.html", _single(runs[0])
    else:
        names = _names(runs)
        target = runs[0].path.parent / f"report-{'-'.join(name.replace('/', '_') for name in names)}.html"
        text = _comparison(dict(zip(names, runs, strict=True)))
    write_atomically(target, text)
    return target


def _single(run: Run) -> str:
    recipe = Recipe.parse(run.config)
    metrics = run.metrics()
    results = read_results(run.path / "eval")
    subtitle = f"{recipe.method.name} with {recipe.backbone.name} on {recipe.data.path}"
    return page.page(
        run.path.resolve().name,
        subtitle,
        [
            page.section("At a glance", page.facts(_glance(recipe, metrics, results))),
            page.section("Scores", _score_tables(results), "Last checkpoint; every constant is in the eval folder."),
            page.section("Training", _curves({"": run})),
            *_galleries(run, recipe),
            page.section("How it was made", _provenance(run, recipe)),
        ],
    )


def _comparison(runs: Mapping[str, Run]) -> str:
    settings = {name: _flat(run.config) for name, run in runs.items()}
    differing = sorted(
        {key for flat in settings.values() for key in flat if len({repr(f.get(key)) for f in settings.values()}) > 1}
    )
    rows = [[key, *(str(flat.get(key, "–")) for flat in settings.values())] for key in differing]
    return page.page(
        " · ".join(runs),
        f"{len(runs)} runs side by side",
        [
            page.section("Scores", _score_comparison(runs)),
            page.section("Training", _curves(runs)),
            page.section("What differs", page.table(["setting", *runs], rows)),
        ],
    )


def _glance(recipe: Recipe, metrics: Sequence[Mapping[str, float]], results: Sequence[Result]) -> dict[str, str]:
    last = metrics[-1]["step"] if metrics else 0
    shown = {"steps": f"{last:,} of {recipe.trainer.steps or 0:,}", "batch": str(recipe.trainer.batch_size)}
    for result in results:
        name, value = next(iter(result.values.items()))
        shown[f"{result.protocol} {name}"] = f"{value:.1f}"
    online = [record["knn"] for record in metrics if "knn" in record]
    if online:
        shown["online k-NN"] = f"{online[-1]:.1f} %"
    return shown


def _score_tables(results: Sequence[Result]) -> str:
    """Per protocol: the run beside raw pixels and an untrained network, where these were measured."""
    tables = []
    for result in results:
        columns = {"this run": result.values, **result.baselines}
        rows = [[name, *(_number(values.get(name)) for values in columns.values())] for name in result.values]
        tables.append(f"<h3>{result.protocol}, {result.test.images:,} images of {result.test.name}</h3>")
        tables.append(page.table(["", *columns], rows))
    return "".join(tables)


def _score_comparison(runs: Mapping[str, Run]) -> str:
    values = {
        name: {f"{r.protocol} {key}": value for r in read_results(run.path / "eval") for key, value in r.values.items()}
        for name, run in runs.items()
    }
    measured = list(dict.fromkeys(key for scores in values.values() for key in scores))
    return page.table(
        ["", *runs], [[key, *(_number(scores.get(key)) for scores in values.values())] for key in measured]
    )


def _curves(runs: Mapping[str, Run]) -> str:
    metrics = {name: run.metrics() for name, run in runs.items()}
    drawn = []
    for title, keys in _CURVES.items():
        series = {
            " ".join(filter(None, (name, key if len(keys) > 1 else ""))): points
            for name, records in metrics.items()
            for key in keys
            if (points := [(record["step"], record[key]) for record in records if key in record])
        }
        drawn.append(charts.line_chart(title, series))
    return f'<div class="charts">{"".join(drawn)}</div>' if any(drawn) else ""


def _galleries(run: Run, recipe: Recipe) -> list[str]:
    """Pictures of the run's own data; a run whose data or weights are gone still has a report."""
    try:
        source = open_source(recipe.data.path, recipe.data.split)
        encoder = run.encoder().eval()
        method = load_method(run)
    except UserError as error:
        return [page.section("Pictures", page.note(f"No pictures: {error}"))]
    images = _images(source, encoder, _SHOWN)
    return [
        page.section(
            "What the features see",
            page.gallery(_feature_pictures(encoder, images)),
            "Patch tokens, less what all these images share at a place, coloured by their three principal components "
            "(equal colour: alike); what the class token looks at in the last block; how alike each patch is to "
            "the one in the middle.",
        ),
        *_concepts(encoder, images),
        page.section(
            "Nearest images",
            page.gallery(_neighbours(source, encoder)),
            f"The most similar of {min(_SEARCHED, len(source))} images, by the cosine of their embeddings.",
        ),
        *_method_pictures(method, recipe, encoder, images),
        page.section(
            "What the method was shown", page.gallery(_view_pictures(method, recipe, source)), "One image in a row."
        ),
    ]


@torch.no_grad()
def _feature_pictures(encoder: Encoder, images: Pictures) -> dict[str, Pictures]:
    features = encoder.encode(images)
    size = images.shape[-1]
    rows, columns = features.grid
    middle = torch.full((len(images),), rows // 2 * columns + columns // 2)
    content = pictures.without_place(features.patches)
    shown = {"image": images, "components": pictures.principal_colors(content, features.grid, size)}
    if encoder.backbone.has_cls:
        attention = encoder.backbone.attention(encoder.normalise(images))
        shown["attention"] = pictures.heat(pictures.attention_maps(attention, features.grid), images)
    shown["like the middle"] = pictures.heat(pictures.similarity_maps(content, features.grid, middle), images)
    return shown


def _concepts(encoder: Encoder, images: Pictures) -> list[str]:
    """What is where, and the images made from that alone, for encoders that know concepts."""
    if not isinstance(encoder, ConceptEncoder):
        return []
    features = encoder.encode(images)
    assert features.sparse is not None
    assert features.where is not None
    large = concepts.magnified(images, 128)
    shown = {"image": large, "strongest concept": concepts.strongest_concepts(features.where, large)}
    try:
        made = encoder.reconstruct(features.sparse, features.where).cpu()
    except UserError as error:
        quality = f"No reconstructions: {error}."
    else:
        shown["reconstruction"] = concepts.magnified(pictures.to_uint8(concepts.at_size(made, images.shape[-1])), 128)
        decibels = concepts.reconstruction_quality(made, images)
        quality = f"The reconstructions of these images reach {decibels.mean():.1f} dB (PSNR, mean)."
    count = features.sparse.shape[1]
    return [
        page.section(
            "What is where",
            page.gallery(shown),
            f"Every cell in the colour of the strongest of {count} concepts, and the image made from the concepts and "
            f"their places alone. {quality}",
        ),
        page.section(
            "Every concept",
            "".join(page.tiles(row) for row in concepts.taken_apart(features.where, large)[:_TAKEN_APART]),
            "One image in a row: the share of each cell that belongs to each concept, and its share of the image.",
        ),
    ]


@torch.no_grad()
def _neighbours(source: Source, encoder: Encoder) -> dict[str, Pictures]:
    images = _images(source, encoder, _SEARCHED)
    embeddings = torch.cat([encoder.encode(chunk).cls.cpu() for chunk in torch.split(images, 128)])
    count = min(_NEIGHBOURS + 1, len(images))
    _, index = nearest(embeddings[:_SHOWN], embeddings, count)
    return {"query" if rank == 0 else str(rank): images[index[:, rank]] for rank in range(count)}


@torch.no_grad()
def _method_pictures(method: Method, recipe: Recipe, encoder: Encoder, images: Pictures) -> list[str]:
    drawn = method.pictures(encoder.normalise(images).cpu(), key=fold(recipe.trainer.seed, len(images)))
    if not drawn:
        return []
    mean, std = recipe.data.mean, recipe.data.std
    shown = {name: pictures.to_uint8(pictures.denormalise(pixels, mean, std)) for name, pixels in drawn.items()}
    return [page.section("What the method makes of images", page.gallery({"image": images} | shown))]


def _view_pictures(method: Method, recipe: Recipe, source: Source) -> dict[str, Pictures]:
    views = Views(method.views)
    crops = []
    for number, sample in enumerate(_samples(source, 4)):
        _, height, width = sample.image.shape
        parameters = views.sample(height, width, fold(recipe.trainer.seed, number))
        crops.append(views.apply(sample.image, parameters))
    return {f"view {number + 1}": torch.stack(same) for number, same in enumerate(zip(*crops, strict=True))}


def _images(source: Source, encoder: Encoder, count: int) -> Pictures:
    """Evenly chosen images of a source, cut as an evaluation cuts them."""
    subset = Subset(source, _evenly(len(source), count))
    return torch.cat(
        [batch.images for batch in evaluation_batches(subset, encoder.image_size, batch_size=64, workers=0)]
    )


def _samples(source: Source, count: int) -> list[Sample]:
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


def _provenance(run: Run, recipe: Recipe) -> str:
    environment = run.path / "environment.json"
    known = json.dumps(json.loads(environment.read_text()), indent=2) if environment.exists() else ""
    return page.details("config.yaml", write_yaml(recipe)) + (page.details("environment.json", known) if known else "")


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names; longer paths where two runs share one."""
    short = [run.path.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
