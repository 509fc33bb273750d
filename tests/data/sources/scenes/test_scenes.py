import hashlib
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from asterism.data.sources.scenes import CLASSES, Scenes, SceneVideos
from asterism.data.sources.scenes.stills import VERSION
from asterism.data.sources.source import Sample
from asterism.errors import UserError


def same(a: Sample, b: Sample) -> bool:
    return (a.key, a.label) == (b.key, b.label) and all(
        torch.equal(getattr(a, name), getattr(b, name)) for name in ("image", "semantic", "instances", "boxes")
    )


def areas(sample: Sample) -> list[int]:
    assert sample.instances is not None
    return torch.bincount(sample.instances.reshape(-1))[1:].tolist()


def digest(source: Scenes, index: int) -> str:
    return hashlib.sha256(source[index].image.numpy().tobytes()).hexdigest()


def test_scene_depends_on_seed_and_index_alone() -> None:
    one, other = Scenes(size=32, count=20, seed=3), Scenes(size=32, count=50, seed=3)
    forward = [one[index] for index in range(8)]
    backward = [other[index] for index in reversed(range(8))][::-1]
    assert all(same(a, b) for a, b in zip(forward, backward, strict=True))
    copy = pickle.loads(pickle.dumps(one))
    assert same(copy[4], one[4])
    assert copy.fingerprint == one.fingerprint
    assert not torch.equal(Scenes(size=32, seed=4)[0].image, forward[0].image)
    assert len({digest(one, index) for index in range(20)}) == 20


def test_fingerprint_names_everything_that_changes_the_scenes() -> None:
    variants = [{}, {"size": 32}, {"count": 9}, {"seed": 1}, {"split": "test"}, {"objects": (1, 2)}]
    assert len({Scenes(**variant).fingerprint for variant in variants}) == len(variants)
    videos = [{}, {"size": 32}, {"count": 9}, {"seed": 1}, {"frames": 3}, {"objects": (1, 2)}]
    assert len({SceneVideos(**variant).fingerprint for variant in videos}) == len(videos)


def test_scenes_stay_what_they_are() -> None:
    """Results name their scenes by fingerprint: who changes what is drawn raises `stills.VERSION` and renews this."""
    source = Scenes(size=32)
    assert VERSION == 3
    assert [source.label(index) for index in range(10)] == [1, 0, 10, 11, 4, 12, 15, 6, 5, 6]
    means = torch.stack([source[index].image.float().mean((1, 2)) for index in range(3)])
    expected = torch.tensor([[131.3, 114.3, 115.2], [115.5, 128.6, 116.3], [118.8, 122.5, 114.3]])
    assert (means - expected).abs().max() < 1


def test_splits_share_no_scene() -> None:
    drawn = {split: {digest(Scenes(size=16, split=split), i) for i in range(20)} for split in ("train", "val", "test")}
    assert len(set.union(*drawn.values())) == 60
    assert Scenes(split="validation").split == "val"


@pytest.mark.parametrize(("size", "objects"), [(32, (1, 6)), (64, (6, 6)), (24, (2, 12))])
def test_label_is_the_class_of_the_largest_visible_thing(size: int, objects: tuple[int, int]) -> None:
    source = Scenes(size=size, count=60, seed=8, objects=objects)
    for index in range(len(source)):
        sample = source[index]
        largest, *others = areas(sample)
        assert all(other < 0.8 * largest for other in others)
        assert sample.label == source.label(index)
        assert sample.semantic is not None
        assert sample.instances is not None
        assert set(sample.semantic[sample.instances == 1].tolist()) == {1 + source.label(index)}


def test_masks_and_boxes_agree() -> None:
    source = Scenes(size=56, count=40, seed=2)
    for index in range(len(source)):
        sample = source[index]
        assert sample.semantic is not None
        assert sample.instances is not None
        assert sample.boxes is not None
        assert torch.equal(sample.semantic == 0, sample.instances == 0)
        assert sample.instances.unique().tolist() == list(range(len(sample.boxes) + 1))
        for number, box in enumerate(sample.boxes.tolist(), start=1):
            rows, columns = (sample.instances == number).nonzero(as_tuple=True)
            assert box == [min(columns), min(rows), max(columns) + 1, max(rows) + 1]
            (kind,) = sample.semantic[rows, columns].unique().tolist()
            assert 1 <= kind <= len(CLASSES)


def test_scene_is_the_same_at_every_size() -> None:
    for index in range(12):
        small, large = Scenes(size=32, seed=1)[index], Scenes(size=128, seed=1)[index]
        shrunk = interpolate(large.image[None].float(), (32, 32), mode="area")[0]
        assert (small.image.float() - shrunk).abs().mean() < 12
        assert small.label == large.label
        assert small.semantic is not None
        assert large.semantic is not None
        assert (small.semantic == large.semantic[2::4, 2::4]).float().mean() > 0.9


@pytest.mark.slow
def test_classes_lie_in_the_shape_and_not_in_the_pixels() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    train, test = Scenes(size=32, count=400), Scenes(size=32, count=100, split="test")
    samples = [[source[index] for index in range(len(source))] for source in (train, test)]
    fit, held_out = ([s.label for s in part] for part in samples)

    def score(features: list[np.ndarray], neighbours: int) -> float:
        return KNeighborsClassifier(neighbours).fit(features[0], fit).score(features[1], held_out)

    pixels = [np.stack([s.image.numpy().reshape(-1) for s in part]) for part in samples]
    colors = [np.stack([s.image.float().mean((1, 2)).numpy() for s in part]) for part in samples]
    shapes = [np.stack([_aligned_mask(s) for s in part]) for part in samples]
    assert score(colors, 20) < 0.25
    assert score(pixels, 20) < 0.35
    assert score(shapes, 1) > 0.8


def _aligned_mask(sample: Sample) -> np.ndarray:
    assert sample.boxes is not None
    assert sample.instances is not None
    left, top, right, bottom = sample.boxes[0].int().tolist()
    mask = (sample.instances == 1)[top:bottom, left:right].float()
    return interpolate(mask[None, None], (16, 16), mode="bilinear").numpy().reshape(-1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 8}, "size = 8"),
        ({"size": 5000}, "16 to 1024"),
        ({"count": 0}, "count = 0"),
        ({"objects": (0, 3)}, "objects"),
        ({"objects": (4, 2)}, "objects"),
        ({"objects": (1, 99)}, "from 1 to 12"),
        ({"split": "tain"}, "'tain'.*train"),
    ],
)
def test_bad_requests_name_value_and_remedy(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Scenes(**arguments)


def test_video_keeps_identities_and_moves_continuously() -> None:
    videos = SceneVideos(size=48, count=4, frames=12, seed=1)
    for index in range(len(videos)):
        clip = videos[index]
        assert clip.frames.shape == (12, 3, 48, 48)
        assert clip.instances.shape == (12, 48, 48)
        numbers = set(range(1, len(clip.classes) + 1))
        assert set(clip.instances[0].unique().tolist()) - {0} == numbers
        assert set(clip.instances.unique().tolist()) - {0} == numbers
        for number in numbers:
            masks = clip.instances == number
            for before, after in itertools.pairwise(masks):
                if before.sum() > 60:  # pixels; fewer are all edge
                    assert _overlap(before, after) > 0.4


def test_video_is_the_same_whatever_its_length() -> None:
    short, long = (SceneVideos(size=32, count=3, frames=n, seed=9)[2] for n in (4, 9))
    assert torch.equal(short.frames, long.frames[:4])
    assert torch.equal(short.instances, long.instances[:4])
    assert short.classes == long.classes
    with pytest.raises(IndexError):
        SceneVideos(count=3)[3]


def _overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a & b).sum() / (a | b).sum())
