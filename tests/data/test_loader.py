import multiprocessing
import pickle
import signal

import pytest
import torch

from asterism.data import DataConfig, Loaded, Loader, Sample, Scenes, Source, Views, to_batch, view_loader, workers
from asterism.data import loader as module
from asterism.data.order import EpochOrder, MicroBatches
from asterism.data.view_batches import CutViews, RawViews
from asterism.errors import UserError
from asterism.images.masks import VOID
from asterism.ops.geometry import patch_centers
from asterism.ops.random import fold
from asterism.types import ColorJitter, ViewSpec
from tests.data.sample_sources import Deadly, Deaf, Faulty, Numbered, Painted

SPECS = (ViewSpec(size=12, jitter=ColorJitter(), blur=0.5), ViewSpec(size=8, scale=(0.05, 0.25), flip=1.0))


CONFIG = DataConfig(path="x", workers=0, shuffle=False)
Batch = Loaded[RawViews]


def loader(source: Source, *, workers: int = 0, keep_mb: float = 0, **options: int) -> Loader[RawViews]:
    settings = {"batch_size": 8, "seed": 3, "steps": 6} | options
    return view_loader(source, Views(SPECS), DataConfig(path="x", workers=workers, keep_mb=keep_mb), **settings)


def same(a: Batch, b: Batch) -> bool:
    return (
        all(torch.equal(x, y) for x, y in zip(a.made.views, b.made.views, strict=True))
        and torch.equal(a.made.geometry, b.made.geometry)
        and torch.equal(a.made.keys, b.made.keys)
        and (a.places, a.keys) == (b.places, b.keys)
        and [str(x) for x in a.bad] == [str(y) for y in b.bad]
        and a.seen == b.seen
    )


def joined(parts: list[Batch]) -> Batch:
    made = [part.made for part in parts]
    return Loaded(
        RawViews(
            views=tuple(torch.cat(views) for views in zip(*(each.views for each in made), strict=True)),
            segments={},
            geometry=torch.cat([each.geometry for each in made], dim=1),
            keys=torch.cat([each.keys for each in made]),
        ),
        places=[place for part in parts for place in part.places],
        keys=[key for part in parts for key in part.keys],
        bad=[bad for part in parts for bad in part.bad],
        seen=parts[0].seen,
    )


def test_contents_of_a_batch() -> None:
    source = Numbered(20)
    batches = list(loader(source))
    assert len(batches) == len(loader(source)) == 6
    for step, batch in enumerate(batches):
        assert [view.shape for view in batch.made.views] == [(8, 3, 12, 12), (8, 3, 8, 8)]
        assert batch.made.views[0].dtype == torch.uint8
        assert batch.made.geometry.shape == (2, 8, 7)
        assert batch.places == EpochOrder(20, 8, seed=3).batch(step).tolist()
        assert batch.made.keys.tolist() == [fold(3, step // 2, index) for index in batch.places]
        assert batch.made.keys.dtype == torch.int64
        assert batch.seen == 8 * (step + 1)
        assert (batch.made.geometry[:, :, 4:6] == torch.tensor([16.0, 20.0])).all()
        assert (batch.made.geometry[1, :, 6] == 1).all()
        for place in range(8):
            sample = source[batch.places[place]]
            views = Views(SPECS)
            parameters = views.sample([(16, 20)], [int(batch.made.keys[place])])
            for view, expected in zip(batch.made.views, views.apply([sample.image], parameters), strict=True):
                assert torch.equal(view[place], expected[0])
            assert torch.equal(batch.made.geometry[:, place], views.geometry(parameters)[:, 0])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_does_not_matter(workers: int) -> None:
    source = Numbered(20, bad=[3, 4, 19])
    alone, helped = list(loader(source)), list(loader(source, workers=workers))
    assert len(alone) == len(helped)
    for a, b in zip(alone, helped, strict=True):
        assert same(a, b)


def test_starting_in_the_middle_gives_the_same_batches() -> None:
    source = Numbered(20, bad=[5])
    whole = list(loader(source))
    for start in (1, 2, 5):
        rest = list(loader(source, start_step=start))
        assert len(rest) == 6 - start
        assert all(map(same, whole[start:], rest))


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_processes_and_micro_batches_share_the_global_batch(world: int, accumulate: int) -> None:
    source = Numbered(20)
    whole = list(loader(source))
    ranks = [list(loader(source, rank=r, world_size=world, accumulate=accumulate)) for r in range(world)]
    for step, expected in enumerate(whole):
        parts = [ranks[r][step * accumulate + j] for j in range(accumulate) for r in range(world)]
        assert same(joined(parts), expected)


def test_views_that_request_labels_get_those_under_their_pixels() -> None:
    source = Painted(8)
    specs = (ViewSpec(size=12, segments=True, scale=(0.3, 1)), ViewSpec(size=8), ViewSpec(size=16, segments=True))
    config = DataConfig(path="x", workers=0)
    raw = next(iter(view_loader(source, Views(specs), config, batch_size=8, seed=0, steps=1)))
    batch = to_batch(raw, torch.device("cpu"), (0, 0, 0), (1, 1, 1))
    assert batch.views[1].segments is None
    for view in (batch.views[0], batch.views[2]):
        assert view.segments is not None
        side = view.pixels.shape[-1]
        points = patch_centers(view.geometry, (side, side)).add(0.5).floor().long()
        for place, index in enumerate(batch.index.tolist()):
            x, y = points[place].unbind(-1)
            truth = source[index].semantic
            assert truth is not None
            expected = truth[y, x].long().view(side, side)
            assert torch.equal(view.segments[place], torch.where(expected == VOID, -1, expected))
        shown = (view.pixels[:, 0] * 255 / Painted.STEP).round().long()
        agree = (shown == torch.where(view.segments < 0, Painted.UNKNOWN, view.segments)).float().mean()
        assert agree > 0.8, "pixels between two regions alone may differ"
    assert (batch.views[0].segments < 0).any()


def test_labels_requested_from_data_without_masks() -> None:
    views = Views([ViewSpec(size=8, segments=True)])
    with pytest.raises(UserError, match="0 has no mask"):
        list(view_loader(Numbered(8), views, CONFIG, batch_size=8, seed=0, steps=1))


def test_bad_images_are_replaced_by_the_next_readable_one() -> None:
    source = Numbered(8, bad=[2, 3, 7])
    first, second = view_loader(source, Views(SPECS), CONFIG, batch_size=8, seed=0, steps=2)
    for epoch, batch in enumerate((first, second)):
        assert batch.places == [0, 1, 4, 4, 4, 5, 6, 0]
        assert batch.keys == [str(place) for place in batch.places]
        assert [bad.key for bad in batch.bad] == ["2", "3", "3", "7"]
        assert batch.made.keys.tolist() == [fold(0, epoch, drawn) for drawn in range(8)]
    assert (
        len({tuple(rows) for rows in first.made.geometry[1, 2:5].tolist()}) == 3
    )  # shown again, but with another crop


def test_no_workers_survive_an_error_whose_traceback_is_kept() -> None:
    with pytest.raises(UserError, match="cannot be read") as kept:
        list(loader(Numbered(20, bad=range(20)), workers=1))
    assert kept.tb is not None
    assert not multiprocessing.active_children()


def test_a_long_run_of_bad_images_does_not_take_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_RUN", 5)
    with pytest.raises(UserError, match="5 images in a row"):
        list(loader(Numbered(20, bad=range(12))))


def test_batches_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="does not divide over 3 processes"):
        loader(Numbered(20), world_size=3)
    with pytest.raises(UserError, match="larger than the data set"):
        loader(Numbered(7))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_worker() -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(UserError, match=r"killed by SIGKILL.*data\.workers below 2"):
        list(loader(Deadly(40), workers=2, steps=20))
    assert signal.getsignal(signal.SIGCHLD) == handler


def test_signals_to_the_process_group_leave_workers_alive() -> None:
    source = Deaf(16)
    assert len(list(loader(source, workers=1, steps=4))) == 4


def test_programming_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError, match="our own bug"):
        list(loader(Faulty(16), workers=1))


def test_the_global_generator_is_unchanged() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(loader(Numbered(20)))
    list(loader(Numbered(20), workers=1, steps=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_arguments_of_spawned_workers_can_be_pickled() -> None:
    source = Numbered(20, bad=[3])
    tasks = module._Batches(source, CutViews(Views(SPECS)), keep_mb=1)
    request = next(iter(MicroBatches(EpochOrder(20, 8, seed=3), range(1, 2))))
    again, sent = pickle.loads(pickle.dumps((tasks, request)))
    assert same(pickle.loads(pickle.dumps(again[sent])), tasks[request])
    pickle.dumps(workers._start_worker)


def test_to_batch() -> None:
    raw = next(iter(loader(Numbered(20))))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    batch = to_batch(raw, torch.device("cpu"), mean, std)
    assert len(batch.views) == 2
    for view, pixels, rows in zip(batch.views, raw.made.views, raw.made.geometry, strict=True):
        for channel in range(3):
            expected = (pixels[:, channel].double() / 255 - mean[channel]) / std[channel]
            torch.testing.assert_close(view.pixels[:, channel].double(), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(view.geometry.top, rows[:, 0])
        assert torch.equal(view.geometry.image_width, rows[:, 5])
        assert torch.equal(view.geometry.flip, rows[:, 6] == 1)
    assert batch.index.tolist() == raw.places
    assert torch.equal(batch.keys, raw.made.keys)


@pytest.mark.parametrize("workers", [0, 2])
def test_keeping_images_does_not_change_batches(workers: int) -> None:
    source = Numbered(20, bad=[3, 4, 19])
    kept, read = list(loader(source, workers=workers, keep_mb=1)), list(loader(source, workers=workers))
    assert all(map(same, kept, read))


class Counted(Scenes):
    """Scenes that count how often each was drawn."""

    def __init__(self, count: int) -> None:
        super().__init__(size=16, count=count)
        self.drawn: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.drawn.append(index)
        return super().__getitem__(index)


def test_kept_images_are_decoded_once_and_equal_the_source() -> None:
    source = Counted(5)
    images = module._Images(source, keep_mb=1)
    for index in [3, 1, 3, 3, 1]:
        sample, expected = images[index], Scenes(size=16, count=5)[index]
        assert sample.key == expected.key
        assert sample.label == expected.label
        assert torch.equal(sample.image, expected.image)
        assert sample.semantic is not None
        assert expected.semantic is not None
        assert torch.equal(sample.semantic.long(), expected.semantic)
    assert source.drawn == [3, 1]


def test_memory_is_limited_and_the_first_images_stay() -> None:
    source = Counted(10)
    bytes_each = 16 * 16 * 4  # three channels and the class of each pixel
    images = module._Images(source, keep_mb=3.5 * bytes_each / 2**20)
    for _ in range(2):
        for index in range(10):
            assert images[index].key == str(index)
    assert source.drawn == [*range(10), *range(3, 10)]


def test_more_workers_than_a_machine_can_start_are_refused() -> None:
    with pytest.raises(UserError, match=r"1000 data workers are too many for \d+ cores; choose at most \d+"):
        next(iter(loader(Numbered(8), workers=1000)))
