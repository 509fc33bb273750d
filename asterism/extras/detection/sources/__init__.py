"""Images whose objects have boxes, classes and perhaps masks: COCO, VOC, ILSVRC, YOLO, UAVDT, and built-in scenes."""
