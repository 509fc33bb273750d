import pytest
import torch

from asterism.errors import UserError
from asterism.nn import perceptual
from asterism.nn.perceptual import Lpips, missing_for, perceptual_distance


@pytest.mark.filterwarnings("ignore")  # the package's own
def test_the_distance_is_that_of_the_package() -> None:
    """The same random network in both; the heads are the package's."""
    package = pytest.importorskip("lpips", reason="needs the extra: pip install 'asterism[metrics]'")
    torch.manual_seed(0)
    theirs = package.LPIPS(net="alex", pnet_rand=True, verbose=False)
    layers = {}
    for part in theirs.net.children():
        layers |= dict(part.named_children()) if isinstance(part, torch.nn.Sequential) else {}
    trunk = torch.nn.Sequential(*(layers[str(number)] for number in range(12)))
    file = perceptual._heads_file("alex")
    assert file is not None
    ours = Lpips("alex", torch.load(file, map_location="cpu", weights_only=True), trunk)
    a, b = (
        torch.randint(0, 256, (2, 3, 40, 48), generator=torch.Generator().manual_seed(s)).to(torch.uint8)
        for s in (0, 1)
    )
    with torch.no_grad():
        expected = theirs(a.float() / 127.5 - 1, b.float() / 127.5 - 1).flatten()
    assert (expected > 0).all()
    torch.testing.assert_close(ours(a, b), expected, rtol=1e-4, atol=1e-7)
    assert ours(a, a).abs().max() == 0
    assert ours.name == "lpips_alex"


def test_what_is_missing_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(perceptual, "_heads_file", lambda kind: tmp_path)
    assert "torchvision.models.vgg16(weights='DEFAULT')" in (missing_for("vgg") or "")
    assert perceptual_distance("auto") is None
    assert perceptual_distance("none") is None
    with pytest.raises(UserError, match=r"reconstruction.perceptual = alex, but the weights of its network are not in"):
        perceptual_distance("alex")
    monkeypatch.setattr(perceptual, "_heads_file", lambda kind: None)
    assert "pip install 'asterism[metrics]'" in (missing_for("alex") or "")
