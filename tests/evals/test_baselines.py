import pytest
import torch

from asterism.data.parts import DataChoice
from asterism.evals import protocol_class, protocol_names
from asterism.evals.baselines import untrained
from asterism.evals.run import run_protocol
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.nn.pixel_baseline import pixel_encoder, pixel_patches
from asterism.ops.random import generator
from asterism.types import Model
from asterism.viz.bar import Bar
from tests.concept_samples import concept_encoder
from tests.evals.samples import small_encoder
from tests.extras.explorer.explored_sample import aligned


def test_pixels_are_the_image_itself() -> None:
    encoder = pixel_encoder()
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=generator(0), dtype=torch.uint8)
    mean, std = torch.tensor(encoder.mean)[:, None, None], torch.tensor(encoder.std)[:, None, None]
    expected = ((images / 255 - mean) / std).flatten(1)
    torch.testing.assert_close(encoder.encode(images).cls, expected)
    assert encoder.encode(torch.zeros(1, 3, 64, 48, dtype=torch.uint8)).cls.shape == (1, 3072)


def test_untrained_has_the_same_architecture_and_other_weights() -> None:
    encoder = small_encoder(seed=5)
    fresh = untrained(encoder)
    own, other = encoder.state_dict(), fresh.state_dict()
    assert {n: v.shape for n, v in own.items()} == {n: v.shape for n, v in other.items()}
    name = "backbone.network.blocks.0.attn.qkv.weight"
    assert not own[name].equal(other[name])
    assert untrained(encoder).state_dict()[name].equal(other[name])
    assert fresh.image_size == encoder.image_size


def test_patches_of_pixels_keep_their_position() -> None:
    images = torch.randint(0, 256, (2, 3, 16, 24), generator=generator(0), dtype=torch.uint8)
    encoder = pixel_patches(16, 8)
    found, pixels = encoder.encode(images), encoder.normalise(images)
    assert found.grid == (2, 3)
    for row in range(2):
        for column in range(3):
            cut = pixels[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
            torch.testing.assert_close(found.patches[:, 3 * row + column], cut.flatten(1))
    assert encoder_fingerprint(encoder) != encoder_fingerprint(pixel_patches(16, 4))


SETTINGS = {
    "backgrounds": {"epochs": 1},
    "linear": {"epochs": 1},
    "linear-seg": {"epochs": 1},
    "linear-sparse": {"epochs": 1, "head_batches": [8]},
    "reconstruction": {"network": "random-convolutions"},
    "video": {"videos": 1, "short_side": 16},
}
DATA = {"backgrounds": "scenes:size=32,count=24", "video": "scenes:size=32,videos=1,frames=4"}


@pytest.mark.parametrize("name", protocol_names())
def test_every_protocol_has_baselines_and_bars_that_fill(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Bar] = []
    monkeypatch.setattr(Bar, "__exit__", lambda bar, *error: bars.append(bar))
    config = protocol_class(name).Config.parse(SETTINGS.get(name, {}))
    choice = DataChoice(DATA.get(name, "scenes:size=32,count=24"))
    with_text = name in ("composition", "mmvp", "text-retrieval", "winoground", "zero-shot")
    encoder = aligned() if with_text else concept_encoder()
    result = run_protocol(name, config, choice, encoder, Model("small"), baselines=True)
    without_pixels = name in ("concept-purity", "equivariance", "linear-sparse", "reconstruction")
    found = [] if with_text else ["untrained"] if without_pixels else ["untrained", "pixels"]
    assert list(result.baselines) == found
    assert any("no raw-pixel baseline" in note for note in result.notes) == without_pixels
    for values in result.baselines.values():
        assert values.keys() == result.values.keys()
    assert len(bars) >= len(result.baselines) + 1
    assert all(bar._done == bar._total for bar in bars), [(bar._title, bar._done, bar._total) for bar in bars]
