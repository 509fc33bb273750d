"""A detector learns: after a hundred steps on four drawn images it finds the rectangles in them."""

import pytest
import torch

from asterism.types import Progress
from tests.extras.detection.drawn import SAMPLES, detector


@pytest.mark.slow
def test_a_detector_finds_what_it_has_learned() -> None:
    task = detector("mask-rcnn", score_threshold=0.05)
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=3e-3)
    make = task.samples()
    for step in range(80):
        batch = make(SAMPLES, [1000 * step + place for place in range(4)])
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(batch, Progress(step, 80, 5)).total)
        optimizer.step()
    task.eval()
    metric = task.metric()
    with torch.no_grad():
        metric.update(task.predict([sample.image for sample in SAMPLES]), [task.truth(sample) for sample in SAMPLES])
    found = metric.gathered()
    assert found["AP50"] > 50
    assert found["mask_AP50"] > 50
