"""The shipped recipes of detection have the papers' numbers."""

from asterism.finetuning.recipe import finetune_recipe_names, load_finetune_recipe

RECIPES = [name for name in finetune_recipe_names() if name.startswith("detect-")]


def test_the_papers_numbers() -> None:
    cascade = load_finetune_recipe("x", recipe="detect-coco-cascade-vitb16")
    assert cascade.task.head.overlaps == (0.5, 0.6, 0.7)
    assert (cascade.trainer.epochs, cascade.optim.milestones) == (12, (0.6667, 0.9167))
    assert cascade.source.drop_path == 0.2
    assert load_finetune_recipe("x", recipe="detect-coco-mask-vits16").optim.lr == 5e-5
    vitdet = load_finetune_recipe("x", recipe="detect-coco-vitdet-vitb16")
    assert (vitdet.task.head.window, vitdet.optim.layer_decay, vitdet.task.sizes.jitter) == (14, 0.7, (0.1, 2.0))
    assert load_finetune_recipe("x", recipe="detect-uavdt-vits16").optim.momentum == 0.9
    assert load_finetune_recipe("x", recipe="detect-uavdt-vits16").task.model_dump()["protocol"] == "uavdt"
    yolos = load_finetune_recipe("x", recipe="detect-coco-yolos-vits16")
    assert (yolos.trainer.batch_size, yolos.optim.lr, yolos.trainer.epochs) == (32, 2.5e-5, 150)
    assert (yolos.optim.clip, yolos.task.sizes.crop, len(yolos.task.sizes.shorter)) == (0.1, 0.5, 21)
    assert len(RECIPES) == 10
