import numpy as np
import pytest
import torch
from PIL import Image

from asterism.data import evaluation_batches
from asterism.errors import UserError
from asterism.images.centre_crop import center_square, usual_resize
from tests.data.pictures import picture
from tests.data.sample_sources import Numbered


@pytest.mark.parametrize("shape", [(50, 80), (80, 50), (64, 64), (37, 37), (20, 300)])
def test_images_are_centre_cropped(shape: tuple[int, int]) -> None:
    width, height = shape
    image = picture(1, shape)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    result = center_square(tensor, 32, 37)
    scale = 37 / min(shape)
    resized = image.resize((max(37, int(width * scale)), max(37, int(height * scale))), Image.Resampling.BICUBIC)
    left, top = round((resized.width - 32) / 2), round((resized.height - 32) / 2)
    expected = np.array(resized)[top : top + 32, left : left + 32]
    assert np.abs(result.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_every_readable_image_once_and_in_order(workers: int) -> None:
    source = Numbered(23, bad=[4, 9])
    batches = list(evaluation_batches(source, 8, batch_size=5, workers=workers))
    assert [len(batch.keys) for batch in batches] == [4, 4, 5, 5, 3]
    readable = [i for i in range(23) if i not in (4, 9)]
    assert [int(key) for batch in batches for key in batch.keys] == readable
    assert torch.cat([batch.index for batch in batches]).tolist() == readable
    assert torch.cat([batch.labels for batch in batches]).tolist() == [i % 2 for i in readable]
    images = torch.cat([batch.images for batch in batches])
    assert images.dtype == torch.uint8
    assert images.shape == (21, 3, 8, 8)
    assert (images == torch.tensor(readable)[:, None, None, None]).all()
    assert [bad.key for batch in batches for bad in batch.bad] == ["4", "9"]


def test_no_batch_is_empty() -> None:
    source = Numbered(12, bad=[0, 1, 4, 5, 6, 7, 10, 11])
    batches = list(evaluation_batches(source, 8, batch_size=2))
    assert [batch.keys for batch in batches] == [["2", "3"], ["8", "9"]]
    assert [[bad.key for bad in batch.bad] for batch in batches] == [["0", "1", "4", "5", "6", "7"], ["10", "11"]]


def test_a_batch_is_empty_only_if_nothing_is_readable() -> None:
    (batch,) = evaluation_batches(Numbered(5, bad=range(5)), 8, batch_size=2)
    assert batch.images.shape == (0, 3, 8, 8)
    assert len(batch.bad) == 5


def test_a_resize_below_the_crop_is_rejected() -> None:
    with pytest.raises(UserError, match="resize = 7"):
        evaluation_batches(Numbered(2), 8, resize=7)


@pytest.mark.parametrize(("size", "resize"), [(224, 256), (448, 512), (32, 32), (64, 64)])
def test_only_large_encoders_lose_the_border(size: int, resize: int) -> None:
    assert usual_resize(size) == resize


def test_an_image_of_the_encoders_size_is_unchanged() -> None:
    source = Numbered(1, side=32)
    (batch,) = evaluation_batches(source, 32)
    assert torch.equal(batch.images[0], source[0].image[:, :, 2:34])  # the middle square
