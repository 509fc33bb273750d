import subprocess
from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.extras.studies.checks import check_settings
from asterism.extras.studies.launch import Machines, write_scripts
from asterism.extras.studies.plan import Place, plan_trials
from asterism.extras.studies.study import StudyConfig

VALUES = {
    "epochs": 3,
    "runs": {
        "mae": {"recipe": "mae-scenes"},
        "dino": {"recipe": "dino-scenes", "after": "mae"},
        "pixels": {"model": "pixels"},
    },
    "evaluations": [{"data": "scenes", "protocols": ["knn"], "columns": ["knn.top1_k20"]}],
}


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_a_script_per_trial_that_resumes_and_evaluates(launcher: str, tmp_path: Path) -> None:
    start, place = _written(tmp_path, Machines(launcher, devices=4))  # type: ignore[arg-type]
    text = place.script("dino-0").read_text()
    started = {"torchrun": "torchrun --standalone --nproc-per-node=4 -m asterism", "slurm": "srun python -m asterism"}
    assert f"{started[launcher]} pretrain --resume {place.run('dino-0')}" in text
    assert f"{started[launcher]} pretrain dino-scenes --out {place.run('dino-0')} --init {place.run('mae-0')}" in text
    assert "trainer.epochs=3 trainer.devices=4 trainer.nodes=1 --overwrite" in text
    assert "python -m asterism evaluate" in text
    assert ("#SBATCH --gpus-per-node=4" in text) == (launcher == "slurm")
    assert "pretrain" not in place.script("pixels").read_text()
    for script in (start, *start.parent.glob("*.sh")):
        subprocess.run(["bash", "-n", script], check=True)


def test_slurm_jobs_wait_for_the_weights_they_need(tmp_path: Path) -> None:
    start, place = _written(tmp_path, Machines("slurm"))
    lines = [line for line in start.read_text().splitlines() if "sbatch" in line]
    assert lines[0] == f"job0=$(sbatch --parsable {place.script('mae-0')})"
    assert f'--dependency="afterok:$job0" {place.script("dino-0")}' in lines[2]


def test_time_cannot_be_planned_in_a_script(tmp_path: Path) -> None:
    values = {name: value for name, value in VALUES.items() if name != "epochs"} | {"gpu_hours": 2}
    with pytest.raises(UserError, match="is converted to steps on the machine that trains"):
        _written(tmp_path, Machines("slurm"), values)
    assert not (tmp_path / "scripts").exists()


def _written(folder: Path, machines: Machines, values: dict[str, object] = VALUES) -> tuple[Path, Place]:
    study, place = StudyConfig.parse(values), Place(folder)
    trials = plan_trials(study, place)
    return write_scripts(study, trials, check_settings(study, trials), place, machines), place
