"""What the page asks for, against slow computations with the same encoder."""

import base64
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

from asterism.extras.explorer.explored import Explored
from asterism.extras.words.aligned import AlignedEncoder
from asterism.images.pictures import batch_of
from asterism.ops import concept_edits
from tests.extras.explorer.explored_sample import Client, client_of, sample


@pytest.fixture
def explored(tmp_path: Path) -> Explored:
    return sample(tmp_path)


@pytest.fixture
def client(explored: Explored) -> Client:
    return client_of(explored)


def pixels_of(explored: Explored, row: int) -> torch.Tensor:
    return batch_of([explored.collection.image(row)], 16)


def test_points_are_the_principal_components(explored: Explored, client: Client) -> None:
    found = np.frombuffer(client.get("map/points").content, "<u2").reshape(-1, 2).astype(float)
    vectors = explored.collection.vectors
    _, _, axes = torch.linalg.svd(vectors - vectors.mean(0))
    expected = ((vectors - vectors.mean(0)) @ axes[:2].T).numpy()
    for axis in range(2):
        assert abs(np.corrcoef(found[:, axis], expected[:, axis])[0, 1]) > 0.999
    spans = np.ptp(expected, axis=0)
    assert np.ptp(found[:, 1]) / np.ptp(found[:, 0]) == pytest.approx(spans[1] / spans[0], rel=1e-3)


@pytest.mark.parametrize(("of", "count"), [("images", 12), ("concepts", 36)])
def test_tsne_has_every_point(client: Client, of: str, count: int) -> None:
    assert len(client.get("map/points", of=of, layout="tsne").content) == 4 * count
    assert client.get("map/layouts", of=of).json()["tsne"] == "ready"


def test_other_layouts_of_patches_are_computed_in_the_background(explored: Explored, client: Client) -> None:
    def asked(rows: list[int]) -> bytes:
        for _ in range(600):
            response = client.post("map/patches", {"rows": rows}, layout="tsne")
            if response.status_code == 200:
                return response.content
            assert response.status_code == 202
            time.sleep(0.1)
        raise AssertionError("never ready")

    first, second = asked([3, 5]), asked([1, 2, 4])
    assert (len(first), len(second)) == (4 * 2 * 16, 4 * 3 * 16)
    assert first != client.post("map/patches", {"rows": [3, 5]}).content
    assert sum("patches" in name for name in explored.jobs._jobs) == 1  # earlier selections are forgotten
    assert client.post("map/patches", {"rows": [1]}, layout="spiral").status_code == 400


def values_of(answer: dict[str, str]) -> list[int]:
    return np.frombuffer(base64.b64decode(answer["values"]), "<u2").tolist()


def test_colours(explored: Explored, client: Client) -> None:
    label = client.get("map/colour", by="label").json()
    assert [label["names"][value] for value in values_of(label)] == ["blue"] * 4 + ["green"] * 4 + ["red"] * 4
    cluster = values_of(client.get("map/colour", by="cluster", clusters=3).json())
    assert len({tuple(cluster[i : i + 4]) for i in (0, 4, 8)}) == 3, "each colour is a cluster"
    typicality = client.get("map/colour", by="typicality").json()
    similarity = (
        (explored.collection.vectors @ explored.collection.vectors.T).fill_diagonal_(-2).topk(10).values.mean(1)
    )
    assert typicality["low"] == pytest.approx(float(similarity.min()), abs=1e-5)
    assert np.argmax(values_of(typicality)) == int(similarity.argmax())
    client.post("use/label", {"rows": [2], "label": "x"})
    mine = client.get("map/colour", by="labels so far").json()
    assert [mine["names"][value] for value in values_of(mine)][1:4] == ["none yet", "x", "none yet"]


@pytest.mark.parametrize("show", ["photo", "concepts", "concept", "components", "attention"])
@pytest.mark.parametrize("model", [0, 1])
def test_pictures(client: Client, show: str, model: int) -> None:
    answer = client.get("image/drawn", row=7, show=show, model=model, token=2, size=256)
    assert Image.open(BytesIO(answer.content)).size == (256, 256)


def test_similarities_within_an_image(explored: Explored, client: Client) -> None:
    found = np.frombuffer(client.get("image/similarities", row=4).content, np.uint8).reshape(16, 16)
    patches = normalize(explored.models[0].encoder.encode(pixels_of(explored, 4)).patches[0], dim=1)
    assert np.allclose(found / 127.5 - 1, (patches @ patches.T).numpy(), atol=0.005)


def test_nearest_places_are_those_of_a_slow_search(explored: Explored, client: Client) -> None:
    encoder = explored.models[0].encoder
    all_patches = [normalize(encoder.encode(pixels_of(explored, row)).patches[0], dim=1) for row in range(12)]
    query = all_patches[6][9]
    best = {row: (patches @ query).max(0) for row, patches in enumerate(all_patches) if row != 6}
    expected = sorted(best, key=lambda row: -float(best[row].values))[:5]
    items = client.get("image/places", row=6, patch=9, count=5).json()["items"]
    assert [item["row"] for item in items] == expected
    assert [item["patch"] for item in items] == [int(best[row].indices) for row in expected]
    box = client.get("image/place", row=items[0]["row"], patch=items[0]["patch"]).headers["x-box"]
    assert all(0 <= float(part) <= 1 for part in box.split(","))


def test_the_box_is_around_the_patch(client: Client) -> None:
    """On a grid of 4 × 4 the crop is the whole image, so the box is the patch's own place."""
    box = client.get("image/place", row=0, patch=6).headers["x-box"]
    assert [float(part) for part in box.split(",")] == [0.5, 0.25, 0.25, 0.25]


def test_images_that_hold_a_concept(explored: Explored, client: Client) -> None:
    encoder = explored.models[0].encoder
    sparse = [normalize(encoder.encode(pixels_of(explored, row)).sparse[0], dim=1) for row in range(12)]  # type: ignore[index]
    best = {row: (each @ sparse[2][1]).max(0) for row, each in enumerate(sparse) if row != 2}
    expected = sorted(best, key=lambda row: -float(best[row].values))[:4]
    items = client.get("image/holders", row=2, token=1, count=4).json()["items"]
    assert [(item["row"], item["token"]) for item in items] == [(row, int(best[row].indices)) for row in expected]


def test_an_edit_swaps_then_drops_then_moves(explored: Explored, client: Client) -> None:
    encoder = explored.models[0].encoder
    mine, other = (encoder.encode(pixels_of(explored, row)) for row in (1, 9))
    sparse = mine.sparse.clone()  # type: ignore[union-attr]
    sparse[:, 0] = other.sparse[:, 2]  # type: ignore[index]
    where = concept_edits.move(concept_edits.drop(mine.where, [1]), 0, 1, -1)  # type: ignore[arg-type]
    expected = encoder.reconstruct(sparse, where)[0]  # type: ignore[operator]
    body = {
        "row": 1,
        "other": 9,
        "swap": [{"token": 0, "theirs": 2}],
        "drop": [1],
        "move": [{"token": 0, "down": 1, "right": -1}],
    }
    answer = client.post("edit", body)
    picture = (
        np.asarray(Image.open(BytesIO(answer.content)).resize((16, 16), Image.Resampling.BOX)).transpose(2, 0, 1) / 255
    )
    assert np.abs(picture - expected.numpy()).mean() < 0.02
    plain = client.post("edit", {"row": 1})
    assert plain.content != answer.content
    assert float(plain.headers["x-quality"]) > 0
    assert "leave at least one" in client.post("edit", {"row": 1, "drop": [0, 1, 2]}).json()["error"]


def test_finding(explored: Explored, client: Client) -> None:
    vectors = explored.collection.vectors
    order = [row for row in (vectors @ vectors[5]).argsort(descending=True).tolist() if row != 5]
    assert [item["row"] for item in client.get("find/row", row=5, count=6).json()["items"]] == order[:6]
    file = explored.collection.files()[explored.collection.keys[5]].read_bytes()
    assert client.post("find/file", file).json()["items"][0] == {"row": 5, "similarity": 1.0}
    outlier = client.get("find/outliers", count=1).json()["items"][0]["row"]
    assert outlier == int((vectors @ vectors.T).fill_diagonal_(-2).topk(10).values.mean(1).argmin())
    groups = client.get("find/duplicates", least=0.9).json()["groups"]
    assert sorted(sorted(item["row"] for item in group) for group in groups) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    typical = client.get("find/typical", clusters=3, cluster=0, count=4).json()["items"]
    assert {explored.collection.keys[item["row"]].split("/")[0] for item in typical} == {
        explored.collection.keys[typical[0]["row"]].split("/")[0]
    }


def test_sentences_and_names_of_concepts(tmp_path: Path) -> None:
    explored = sample(tmp_path, text=True)
    client, encoder = client_of(explored), explored.models[0].encoder
    assert isinstance(encoder, AlignedEncoder)
    assert client.get("world").json()["text"]
    found = client.get("find/sentence", sentence="green things", count=4).json()["items"]
    features = encoder.encode(torch.cat([pixels_of(explored, row) for row in range(12)]))
    assert features.aligned is not None
    similarity = features.aligned @ encoder.encode_text("green things")[0]
    assert [item["similarity"] for item in found] == pytest.approx(similarity.topk(4).values.tolist(), abs=2e-4)
    assert [item["row"] for item in found] == similarity.topk(4).indices.tolist()

    classes = explored.collection.classes
    assert classes is not None
    assert features.sparse is not None
    alone = [encoder.alignment.images_of_tokens(token[None, None]) for token in features.sparse[0]]
    nearest = (torch.cat(alone) @ encoder.encode_text(classes).T).argmax(dim=1)
    names = [concept["name"] for concept in client.get("image/facts", row=0).json()["concepts"]]
    assert names == [classes[place] for place in nearest]


def test_labels_scores_and_the_rest(explored: Explored, client: Client) -> None:
    assert client.get("use/rest", label="x").status_code == 409
    client.post("use/label", {"rows": [0, 1, 2], "label": "sky"})
    answer = client.post("use/label", {"rows": [8, 9, 10], "label": "=fire, red"}).json()
    assert (answer["labelled"], answer["knn"], answer["linear"]) == (6, 100.0, 100.0)
    rest = client.get("use/rest", label="sky", count=6).json()["items"]
    assert rest[0]["row"] == 3
    assert not {item["row"] for item in rest} & {0, 1, 2, 8, 9, 10}
    kept = (explored.writes / "labels.csv").read_text().splitlines()  # type: ignore[operator]
    assert kept[0] == "key,class,label"
    assert kept[4] == '''red/000.png,red,"'=fire, red"'''
    assert client.post("use/label", {"rows": [0], "label": None}).json()["labelled"] == 5


def test_copies_are_the_files_themselves(explored: Explored, client: Client) -> None:
    assert client.post("use/copy", {"rows": [0, 4], "folder": "few"}).json() == {"copied": 2, "folder": "few"}
    files = explored.collection.files()
    written = explored.writes / "few"  # type: ignore[operator]
    assert sorted(file.name for file in written.iterdir()) == ["000 (2).png", "000.png"]
    assert (written / "000 (2).png").read_bytes() == files["green/000.png"].read_bytes()
    assert client.post("use/copy", {"rows": [0], "folder": "few"}).status_code == 409


def test_without_permission_nothing_is_written(tmp_path: Path) -> None:
    client = client_of(sample(tmp_path, writes=False))
    before = sorted(tmp_path.rglob("*"))
    answer = client.post("use/copy", {"rows": [0], "folder": "few"})
    assert (answer.status_code, "--allow-writes" in answer.json()["error"]) == (403, True)
    assert client.post("use/label", {"rows": [0], "label": "x"}).status_code == 200
    assert sorted(tmp_path.rglob("*")) == before


def test_curves_continue_while_a_run_trains(explored: Explored, client: Client) -> None:
    assert len(client.get("runs/curves").json()["records"]) == 10
    with (explored.models[0].run / "metrics.jsonl").open("a") as file:  # type: ignore[operator]
        file.write('{"step": 11, "loss": 1.5}\n{"step": 12, "lo')
    assert client.get("runs/curves", after=10).json()["records"] == [{"step": 11, "loss": 1.5}]
    assert client.get("runs/curves", model=1).status_code == 409
