"""Aligning a frozen encoder with text: a probe, trained on cached features, as a job of the training loop."""
