from pathlib import Path

import pytest
import torch

from asterism.data import open_source
from asterism.errors import UserError
from asterism.features.extract import extract_pooled, pooled
from asterism.types import Features
from tests.evals.samples import small_encoder, write_colours


def test_rows_follow_the_source(tmp_path: Path) -> None:
    encoder, source = small_encoder(), open_source(str(write_colours(tmp_path, 3, size=(16, 16))))
    found = extract_pooled(encoder, source, "cls", resize=16, batch_size=4)
    images = torch.stack([source[i].image for i in range(len(source))])
    torch.testing.assert_close(found.features, encoder.encode(images).cls, atol=1e-5, rtol=1e-5)
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found.keys == [source[i].key for i in range(len(source))]


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    write_colours(tmp_path, 1)
    for image in tmp_path.glob("*/*.png"):
        image.write_bytes(b"not an image")
    with pytest.raises(UserError, match="none of the 3 images"):
        extract_pooled(small_encoder(), open_source(str(tmp_path)), "cls", resize=16, batch_size=2)


def test_pooling() -> None:
    patches, sparse = torch.arange(12.0).view(1, 3, 4), torch.ones(1, 2, 4)
    features = Features(cls=torch.zeros(1, 4), patches=patches, grid=(1, 3), sparse=sparse)
    assert pooled(features, "cls").equal(features.cls)
    assert pooled(features, "patches").equal(torch.tensor([[4.0, 5.0, 6.0, 7.0]]))
    assert pooled(features, "sparse").equal(torch.ones(1, 4))
    with pytest.raises(UserError, match="no concept tokens"):
        pooled(Features(cls=features.cls, patches=patches, grid=(1, 3)), "sparse")


def test_quarters_keep_where_things_are() -> None:
    cells = torch.arange(16.0).reshape(1, 16, 1)  # raster order, 4 × 4
    features = Features(cls=torch.zeros(1, 2), patches=torch.cat([cells, -cells], dim=2), grid=(4, 4))
    quarters = pooled(features, "quarters").reshape(2, 2, 2)  # channel, row, column
    assert quarters[0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert quarters[1].equal(-quarters[0])
    whole = Features(cls=torch.zeros(1, 3), patches=torch.ones(1, 1, 3), grid=(1, 1))  # raw pixels are one token
    assert pooled(whole, "quarters").equal(torch.ones(1, 12))
