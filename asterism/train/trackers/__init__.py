"""Experiment trackers: TensorBoard, Weights & Biases and MLflow, each an optional package."""
