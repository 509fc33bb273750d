import torch

from asterism.methods.parts.object_pictures import (
    corner_views,
    least_typical_objects,
    nearest_in_another_image,
    without_partners,
)
from asterism.ops.geometry import patch_centers


def test_crops_for_pictures_match_their_geometry() -> None:
    """In an image whose colours encode positions, the crop has the patch's coordinates at the centre of every patch."""
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    image = torch.stack([x, y, 0 * x])[None]
    views = corner_views(image)
    assert views[1].geometry.flip.all()
    for view in views:
        places = patch_centers(view.geometry, (4, 4))[0]
        shown = torch.nn.functional.avg_pool2d(view.pixels, 4)[0, :2].flatten(1).T
        assert (shown - places).abs().max() < 0.1


def test_objects_in_one_view_only_are_not_shown() -> None:
    labels = torch.tensor([[[0, 1, 2], [0, 0, 0]], [[1, 1, 2], [1, 0, 1]]])
    assert without_partners(labels, 3).tolist() == [[[-1, 1, 2], [0, 0, 0]], [[1, 1, 2], [-1, 0, -1]]]


def test_the_least_typical_object_finds_its_match_in_another_image() -> None:
    objects = torch.zeros(3, 3, 4)
    objects[0, :2] = torch.tensor([[5.0, 1, 0, 0], [0, 0.1, 2, 0]])
    objects[1] = torch.tensor([[0, 1.0, 0, 0], [0, 0, 1, 0.2], [4, 4, 0, 0]])
    objects[2, 2] = torch.tensor([1.0, 1, 1, 1])
    assert least_typical_objects(objects).tolist() == [1, 1, 2]
    image, match = nearest_in_another_image(objects)
    assert image.tolist()[:2] == [1, 0]
    assert match.tolist()[:2] == [1, 1]
