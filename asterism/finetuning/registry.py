"""The tasks by name: the module and class of each. Adding a task is one line here; see `asterism.finetuning.task`."""

from __future__ import annotations

TASKS = {
    "classify": "asterism.finetuning.classification.classify:Classify",
    "segment": "asterism.finetuning.segmentation.segment:Segment",
    "detect": "asterism.finetuning.detection.detect:Detect",
    "probe": "asterism.finetuning.classification.probe:Probe",
}
