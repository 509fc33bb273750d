from pathlib import Path

import pytest
import torch

from asterism.ops.schedules import cosine, ramp_per_epoch, warmup_cosine
from asterism.types import Progress
from tests.golden.vectors import Vectors, read, relative_error


@pytest.fixture(scope="module")
def schedules(golden: Path) -> Vectors:
    return read(golden / "flsl" / "schedules.npz")


def test_learning_rate(schedules: Vectors) -> None:
    params = schedules.params
    per_epoch = params["iterations_per_epoch"]
    steps = params["epochs"] * per_epoch
    warmup = int(params["warmup_fraction"] * params["epochs"]) * per_epoch
    warmup_b = params["warmup_epochs_b"] * per_epoch
    peak, final, start = params["lr"], params["lr_final"], params["start_warmup_b"]
    plain = [warmup_cosine(step, steps, peak, final, warmup) for step in range(steps)]
    started = [warmup_cosine(step, steps, peak, final, warmup_b, start) for step in range(steps)]
    assert relative_error(torch.tensor(plain), schedules["out_lr"]) <= params["tolerance"]
    assert relative_error(torch.tensor(started), schedules["out_lr_with_start"]) <= params["tolerance"]


def test_weight_decay_and_momentum(schedules: Vectors) -> None:
    params = schedules.params
    steps = params["epochs"] * params["iterations_per_epoch"]
    decay = [cosine(step, steps, params["wd"], params["wd_final"]) for step in range(steps)]
    momentum = [cosine(step, steps, params["momentum"], 1.0) for step in range(steps)]
    assert relative_error(torch.tensor(decay), schedules["out_weight_decay"]) <= params["tolerance"]
    assert relative_error(torch.tensor(momentum), schedules["out_momentum"]) <= params["tolerance"]


@pytest.mark.parametrize("warmup", ["given", "none"])
def test_teacher_temperature(schedules: Vectors, warmup: str) -> None:
    params = schedules.params
    epochs = params["temp_warmup_epochs"] if warmup == "given" else 0
    expected = schedules["out_teacher_temp" if warmup == "given" else "out_teacher_temp_no_warmup"]
    start, final, per_epoch = params["temp_start"], params["temp_final"], params["iterations_per_epoch"]
    progress = [Progress(e * per_epoch, params["epochs"] * per_epoch, per_epoch) for e in range(params["epochs"])]
    ours = [ramp_per_epoch(p, epochs, start, final) for p in progress]
    assert relative_error(torch.tensor(ours), expected) <= params["tolerance"]
