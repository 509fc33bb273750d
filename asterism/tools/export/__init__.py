"""Models for other programs: ONNX, transformers, timm, and our own file in half precision."""
