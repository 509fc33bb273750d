"""Fine-tuning: a pretrained backbone, a head for a task, and labels."""
