"""Words that a command must refuse: settings outside their ranges, options that do not exist or contradict others."""

from collections.abc import Iterator

from tests.campaigns.attacks import no_network
from tests.campaigns.campaign import Case
from tests.campaigns.faults import ESCAPE, MARKUP
from tests.campaigns.materials import CAPTIONS, DINO, line, on

PRETRAINING = """
    trainer.batch_size=0 trainer.batch_size=-8 trainer.batch_size=1.5 trainer.batch_size=[4] trainer.batch_size=x
    trainer.steps=0 trainer.steps=-5 trainer.steps=1e30 trainer.steps=99999999999999999999 trainer.steps=[]
    trainer.seed=99999999999999999999999 trainer.seed=-1 trainer.seed=0.5 trainer.seed=2026-11-16 trainer.devices=0
    trainer.devices=-1 trainer.nodes=0 trainer.accumulate=0 trainer.accelerator=tpu trainer.precision=8
    trainer.strategy=x trainer=5 trainer=[] trainer.nothing=1 optim.lr=-1e-3 optim.lr=.nan optim.lr=.inf
    optim.lr=-.inf optim.lr=1e999 optim.lr=x optim.min_lr=-1 optim.betas=[0.9,1.0] optim.betas=[-1,0.5]
    optim.betas=[0.9] optim.betas=0.9 optim.betas=[.nan,0.9] optim.weight_decay=.nan optim.weight_decay=-1
    optim.weight_decay_end=.inf optim.warmup_epochs=.nan optim.warmup_epochs=.inf optim.warmup_epochs=-1
    optim.warmup_share=2 optim.clip=.nan optim.clip=-1 monitor.log_every=0 monitor.log_every=-1 monitor.knn.k=0
    monitor.knn.bank=0 monitor.knn.queries=0 monitor.knn.temperature=0 monitor.knn.every_epochs=0 monitor=5
    checkpoint.every_steps=0 checkpoint.keep_last=0 checkpoint.keep_every=0 checkpoint.every_minutes=.nan
    checkpoint.every_minutes=-1 data.path=5 data.path=[] data.path=null data.workers=-1 data.prefetch=0 data.keep_mb=-1
    data.max_bad_share=2 data.mean=[0,0] data.std=[1,1,0] data.std=[1,1,.nan] data=5 data=[photos] method.name=[a]
    method.name=5 method.name=null method=[] method={} method.out_dim=0 method.out_dim=-3 method.momentum=2
    method.momentum=.nan method.teacher_temp=0 method.teacher_temp=.nan method.student_temp=-1
    method.global_scale=[1,0.5] method.global_scale=[0,1] method.local_scale=[0.4,0.1] method.local_views=-1
    method.local_views=999999999 method.global_size=99999999 method.center_momentum=1 method.freeze_last_layer=-1
    method.solarize=-0.1 backbone.depth=0 backbone.depth=999999999 backbone.dim=0 backbone.dim=-16
    backbone.dim=99999999999999999999 backbone.heads=0 backbone.heads=3 backbone.patch_size=0 backbone.image_size=-16
    backbone.image_size=17 backbone.mlp_ratio=0 backbone.mlp_ratio=.nan backbone.drop_path=1 backbone.drop_path=-0.5
    backbone.name=[x] backbone.name=no_such_model backbone.registers=-1 backbone.arguments={pretrained:true} backbone=7
    method.student_temp=1e-8 method.teacher_temp=0.0001 optim.clip=1e-320 trainer.minutes=1e-320
    trainer.devices=1000 trainer.nodes=2 data.workers=1000
"""
_LENGTHS = " ".join(
    f"trainer.{name}={length}"
    for name in ("epochs", "minutes")
    for length in ("0", "-1", ".nan", ".inf", "-.inf", "1e400", "[1]", "x")
)
_FINETUNING = """
    task=nothing task.name=[a] task.name=null task=5 task.nothing=1 task.label_smoothing=1 task.label_smoothing=-0.1
    task.label_smoothing=.nan task.mixing.cutmix=1e-320 task.mixing.mixup=-1 task.mixing.mixup=.nan
    task.mixing.nothing=1
    task.augmentation.erasing=2 task.augmentation.scale=[1,0.5] task.augmentation.scale=[0,1]
    task.augmentation.flip=.nan head=nothing head=5 head=first-layer head.std=-1 head.std=.nan head.pooling=x
    head.pooling=sparse head.hidden=5 source.image_size=17 source.image_size=0 source.image_size=-16
    source.image_size=99999999 source.drop_path=1 source.drop_path=-0.5 source.weights=x source.network={}
    source.path=elsewhere data.path=5 data.path=[] data.path=null data.split=nothing data.label_share=0
    data.label_share=2 data.label_share=.nan data.label_list=nowhere.txt data.label_list=labelled data.workers=-1
    data.prefetch=0 data.max_bad_share=2 data=5 optim.name=x optim.lr=-1 optim.lr=.nan optim.lr=.inf
    optim.lr_batch=0 optim.schedule=x optim.power=0 optim.milestones=[2] optim.milestones=[.nan]
    optim.warmup_epochs=-1 optim.warmup_epochs=.inf optim.warmup_steps=-1 optim.layer_decay=0 optim.layer_decay=2
    optim.layer_decay=.nan optim.weight_decay=-1 optim.momentum=1 optim.betas=[0.9] optim.betas=[0.9,1.0]
    optim.clip=-1 optim.clip=.nan average.decay=1 average.decay=.nan average=5 validation.share=0 validation.share=1
    validation.share=.nan validation.every_epochs=0 validation.every_epochs=.nan validation.patience=0
    validation.patience=-1 validation=[] trainer.steps=0 trainer.steps=-1 trainer.steps=99999999999999999999
    trainer.batch_size=0 trainer.batch_size=-4 trainer.batch_size=3 trainer.accumulate=0 trainer.accumulate=3
    trainer.seed=-1 trainer.seed=99999999999999999999999 trainer.devices=0 trainer.precision=8
    trainer.accelerator=tpu trainer.strategy=x checkpoint.every_steps=0 checkpoint.keep_last=0 monitor.log_every=0
    monitor=5 nothing.nothing=1 nothing=1 =1 trainer.steps trainer..steps=3
"""
_ALIGNING = """
    text.dim=0 text.dim=-1 text.dim=17 text.dim=99999999999 text.depth=0 text.depth=.nan text.heads=0 text.heads=3
    text.context=0 text.context=-1 text.vocabulary=0 text.vocabulary=x text.name=nowhere text.name=5 text.name=[a]
    text.name=hf:a text.name=hf:../../x text=5 text.nothing=1 probe.tokens=x probe.tokens=sparse probe.heads=0
    probe.heads=3 probe.heads=-1 probe.mlp_ratio=-1 probe.mlp_ratio=.nan probe.mlp_ratio=.inf probe=5 probe.nothing=1
    loss.name=x loss.scale=0 loss.scale=-1 loss.scale=.nan loss.scale=1e999 loss.bias=.nan loss.bias=.inf loss.chunk=0
    loss=5 data.held_out=1 data.held_out=-0.1 data.held_out=.nan data.precision=int8 data.encode_batch=0
    data.workers=-1 data.max_bad_share=2 data.split=nothing data.path=5 data.path=[] data=5 source.path=elsewhere
    source=5 optim.lr=-1 optim.lr=.nan optim.clip=-1 optim.warmup_share=2 trainer.steps=0 trainer.batch_size=0
    trainer.batch_size=9999 trainer.accumulate=2 trainer.strategy=fsdp trainer.devices=0 trainer.seed=-1
    checkpoint.every_steps=0 monitor.log_every=0 nothing.nothing=1 =1 trainer..steps=3
"""
_OPEN_CLIP = "text.name=open_clip:nothing text.name=open_clip:ViT-B-32:nothing text.name=open_clip:ViT-B-32:/etc/passwd"
_DISTILLING = """
    method.teacher=nowhere method.teacher=photos method.teacher=5 method.teacher=null method.teacher=[]
    method.teacher=~nosuchuser method.teacher=photos/red/000.png method.teacher_options=5
    method.teacher_options={nothing:1} method.teacher_options={heads:0} method.teacher_size=0
    method.teacher_size=x method.teacher_size=17 method.teacher_size=99999999 method.cls=5 method.cls={distance:x}
    method.cls={weight:.nan} method.patches={weight:-1} method.queue=5 method.queue={size:0}
    method.queue={teacher_temp:0} method.head_layers=-1 method.hidden_dim=0 method.scale=[0,1] method.scale=[1,0.5]
    method.blur=2 method.image_size=17
"""
_EVALUATING = """
    knn.k=0 knn.k=[] knn.k=-1 knn.k=x knn.temperature=0 knn.temperature=.nan knn.temperature=-1 knn.seed=-1
    knn.seed=99999999999999999999 knn.batch_size=0 knn.workers=-1 knn.holdout=0 knn.holdout=1 knn.holdout=.nan
    knn.label_share=0 knn.label_share=2 knn.label_list=nowhere.txt knn.resize=.inf knn.resize=0.5 knn=5
    knn.nothing=1
"""
_SEGMENTING = """
    k=0 k=-1 k=x k=[] temperature=0 temperature=-1 temperature=.nan temperature=.inf short_side=0 short_side=-5
    short_side=9999999 short_side=16000 multiple=0 nothing=1
"""
_TRACKING = """
    topk=0 topk=-1 radius=-1 context=-1 temperature=0 temperature=.nan short_side=0 short_side=9999999 multiple=-2
    first_mask=x nothing=1
"""
_ODD = ["=1", "trainer.steps", "trainer..steps=3", ".=1", "a.b.c.d.e=1", ".".join("x" * 999) + "=1"]
_PROBING = """
    task.learning_rates=[] task.learning_rates=[0] task.learning_rates=[.nan] task.learning_rates=5
    task.learning_rates=[-1] task.feature=x task.head=linear
"""

# Whole command lines, by the cause that they are counted under.
REFUSED = {
    "fine-tuning: words": """
        finetune --task classify --data labelled
        finetune w.safetensors --task classify
        finetune w.safetensors --data labelled
        finetune w.safetensors --task probe --recipe x --data labelled
        finetune w.safetensors --recipe x --data labelled
        finetune w.safetensors --recipe labelled --data labelled
        finetune w.safetensors --recipe dino --data labelled
        finetune w.safetensors --resume labelled
        finetune --resume labelled
        finetune --resume nowhere
        finetune --resume w.safetensors
        predict w.safetensors --images labelled --device x
        predict finetuned --images labelled --out out --batch-size 0
        predict finetuned --images labelled --out out --batch-size -1
        predict finetuned --images labelled --out out --batch-size x
        predict finetuned --images labelled --out out --batch-size 1.5
    """,
    "runs of another kind": """
        predict pretrained --images labelled --out out
        predict w.safetensors --images labelled --out out
        finetune --resume pretrained
        pretrain --resume finetuned
        concepts finetuned labelled/red/000.png --out out
        reconstruct finetuned labelled/red/000.png --out out
        finetune --resume finetuned optim.lr=3
        finetune --resume finetuned source.path=elsewhere
        finetune --resume finetuned data.path=pretrained
        concepts w.safetensors photos/red/000.png --out out
    """,
    "alignment: words": f"""
        align --data {CAPTIONS}
        align w.safetensors
        align w.safetensors --data captions/red0.png
        align w.safetensors --resume captions
        align --resume captions
        align --resume nowhere
        align --resume w.safetensors
        search w.safetensors --text dog --data captions
        concepts w.safetensors captions/red0.png --text dog
        evaluate w.safetensors --data captions --protocols zero-shot
    """,
    "explore: words": f"""
        explore nowhere --data photos --no-browser
        explore {ESCAPE} --data photos --no-browser
        explore w.safetensors --no-browser
        explore w.safetensors --no-browser --data nowhere
        explore w.safetensors --no-browser --data w.safetensors
        explore w.safetensors --no-browser --data ~nosuchuser
        explore w.safetensors --no-browser --index nowhere.npz
        explore w.safetensors --no-browser --index photos
        explore w.safetensors --no-browser --index photos/red/000.png
        explore w.safetensors --no-browser --data photos --split nothing
        explore w.safetensors --no-browser --data photos --with nowhere
        explore w.safetensors --no-browser --data photos --with photos/red/000.png
        explore w.safetensors --no-browser --data photos --allow-writes w.safetensors
        explore w.safetensors --no-browser --data photos --allow-writes w.safetensors/x
        explore w.safetensors --no-browser --data photos --allow-writes {"n" * 300}
        explore w.safetensors --no-browser --data photos --port -1
        explore w.safetensors --no-browser --data photos --port 65536
        explore w.safetensors --no-browser --data photos --port x
        explore w.safetensors --no-browser --data photos --device x
        explore w.safetensors --no-browser --data photos -w nothing=1
    """,
    "profile: words": f"""
        profile {DINO} --data photos --steps 0
        profile {DINO} --data photos --steps -1
        profile {DINO} --data photos --steps x
        profile {DINO} --data nowhere
        profile {DINO} --data {ESCAPE}
        profile {DINO} --data photos trainer.batch_size=4000
        profile {DINO} --data photos optim.lr=.nan
        profile {DINO} --data photos backbone.depth=999999999
        profile {DINO} --data photos nothing=1
        profile {DINO} --data photos trainer.accelerator=tpu
    """,
    "export: words": f"""
        export pretrained --to coreml --out out
        export pretrained --to timm --dtype int4 --out out
        export nowhere --to timm --out out
        export pretrained/checkpoints --to timm --out out
        export {ESCAPE} --to timm --out out
        export w.safetensors --to timm -w nothing=1 --out out
    """,
    "comparisons: words": f"""
        compare nothing --jobs 1 --out out
        compare {ESCAPE} --jobs 1 --out out
        compare study.yaml --only b --jobs 1 --out out
        compare study.yaml --jobs 0 --out out
        compare study.yaml --launch cron --jobs 1 --out out
        compare study.yaml --launch slurm --devices 0 --jobs 1 --out out
        compare study.yaml --launch slurm --nodes -1 --jobs 1 --out out
    """,
    "names with escapes": f"""
        embed w.safetensors --data {ESCAPE} --out out.npz
        embed {ESCAPE} --data photos --out out.npz
        report {ESCAPE}
        pretrain {ESCAPE} --data photos
        pretrain {DINO} --data photos optim.{ESCAPE}=1
        list models {ESCAPE}
    """,
}
_LICENCES = {"markup": MARKUP, "escapes": ESCAPE, "lines": "a\n---\nb: c", "long": "x" * 9999}


def cases(seed: int = 0) -> Iterator[Case]:
    for command, texts, more in (
        ("pretrain", PRETRAINING, ()),
        ("finetune", _FINETUNING, ()),
        ("finetune", _PROBING, ("--task", "probe")),
        ("distill", _DISTILLING, ()),
        ("evaluate", _EVALUATING, ()),
        ("segment", _SEGMENTING, ()),
        ("track", _TRACKING, ()),
        ("align", _ALIGNING, ()),
    ):
        for text in texts.split():
            inside = no_network if command in ("align", "distill") else None
            yield on(
                f"{command} {' '.join(more)} {text}", f"{command}: settings", line(command, *more, text), inside=inside
            )
    for text in _OPEN_CLIP.split():  # the names of its models may be asked for, so with a network
        yield on(text, "align: settings", line("align", text))
    for command in ("pretrain", "finetune"):
        for text in _LENGTHS.split():
            yield on(f"{command} {text}", "lengths", line(command, "trainer.steps=null", text))
    for text in _ODD:
        yield on(f"pretrain {text[:30]}", "pretrain: settings", line("pretrain", text))
    yield on("nothing to learn", "distill: settings", line("distill", "method.cls=null", "method.patches=null"))
    for cause, lines in REFUSED.items():
        for words in filter(None, map(str.strip, lines.splitlines())):
            yield on(words.replace(DINO, "dino")[:200], cause, words, seconds=60)
    for target in ("safetensors", "timm"):
        for kind, text in _LICENCES.items():
            words = ["export", "pretrained", "--to", target, "--license", text, "--out", "out"]
            yield on(f"{target}, licence with {kind}", "export: words", words, exits=(0, 2))
    yield on("several kinds in a report", "runs of another kind", "report finetuned pretrained", exits=(0, 2))
