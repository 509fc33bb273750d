import math

import torch

from asterism.viz.concepts import (
    at_size,
    concept_colors,
    concept_map,
    reconstruction_quality,
    strongest_concepts,
    taken_apart,
)

WHITE = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
WHERE = torch.tensor([[[[1.0, 0.2], [0.0, 0.4]], [[0.0, 0.8], [1.0, 0.6]]]])


def test_every_cell_has_the_colour_of_its_strongest_concept() -> None:
    sheet = strongest_concepts(WHERE, WHITE)[0]
    colors = (concept_colors(2) * 255).round().to(torch.uint8)
    assert torch.equal(sheet[:, 1, 1], colors[0])
    assert torch.equal(sheet[:, 1, 6], colors[1])
    assert torch.equal(sheet[:, 6, 1], colors[1])


def test_a_map_is_the_strength_of_a_colour() -> None:
    drawn = concept_map(WHERE, 0, WHITE)[0].float() / 255
    color = concept_colors(2)[0]
    torch.testing.assert_close(drawn[:, 0, 0], color, atol=3e-3, rtol=0)  # the whole cell
    torch.testing.assert_close(drawn[:, 7, 0], torch.full((3,), 0.55), atol=3e-3, rtol=0)  # none of the cell: grey
    half = concept_map(WHERE / 2, 0, WHITE)[0].float() / 255
    assert torch.equal(half, drawn), "strength is relative to the largest share of the image"


def test_captions_show_the_share_of_the_image() -> None:
    (row,) = taken_apart(WHERE, WHITE)
    assert [tile.caption for tile in row] == ["concept 0, 40%", "concept 1, 60%"]
    assert torch.equal(row[1].picture, concept_map(WHERE, 1, WHITE)[0])


def test_quality_is_measured_at_the_size_of_the_images() -> None:
    images = torch.full((2, 3, 8, 8), 51, dtype=torch.uint8)
    made = torch.full((2, 3, 16, 16), 0.3)
    for value in reconstruction_quality(made, images).tolist():
        assert math.isclose(value, 20.0, abs_tol=1e-4)
    assert at_size(made, 16) is made
