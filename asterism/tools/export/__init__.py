"""Models for other programs: ONNX, TorchScript, transformers, timm, and our own file in half precision."""
