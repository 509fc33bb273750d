"""Puts an encoder into the package, under a name that needs no path: asterism.load("nano").

    python -m lab.nano.ship nano RUN_OR_FILE

Weights become float16 with 7 significant bits (of 11), which moves none by more than 0.8 % and compresses by a fifth
more: both models and the code must fit into a wheel of 10 MB. Prints how far the features move.
"""

import copy
import hashlib
import json
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

import asterism
from asterism.nn.concepts import concepts_file
from asterism.nn.weights.packaged import folder

_DROPPED = 4  # bits of float16's significand


def rounded(values: Tensor) -> Tensor:
    """As float16 whose last bits are zero, to nearest."""
    if not values.is_floating_point():
        return values
    bits = values.half().view(torch.int16).int() + (1 << (_DROPPED - 1))
    return (bits >> _DROPPED << _DROPPED).to(torch.int16).view(torch.float16)


def main(name: str, source: str) -> None:
    encoder = asterism.load(source)
    kept = copy.deepcopy(encoder).half()
    for tensor in kept.state_dict().values():
        tensor.copy_(rounded(tensor))
    path = kept.save(folder() / f"{name}.safetensors")
    files = [file for file in (path, concepts_file(path)) if file.is_file()]
    index = json.loads((folder() / "index.json").read_text())
    index[name]["files"] = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder() / "index.json").write_text(json.dumps(index, indent=2) + "\n")
    images = torch.rand(64, 3, encoder.image_size, encoder.image_size, generator=torch.Generator().manual_seed(0))
    near = F.cosine_similarity(encoder.encode(images).cls, asterism.load(name).encode(images).cls).min()
    print(f"{name}: {sum(file.stat().st_size for file in files) / 1e6:.1f} MB; features have cosine {near:.5f} or more")


if __name__ == "__main__":
    main(*sys.argv[1:3])
