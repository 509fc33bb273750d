import json

import pytest

from asterism.train.trackers.mlflow_runs import MlflowConfig
from asterism.train.trackers.of_run import Trackers, TrackersConfig

pytest.importorskip("mlflow", reason="needs the extra: pip install 'asterism[mlflow]'")


@pytest.mark.filterwarnings("ignore")  # mlflow's own
def test_a_file_store_has_settings_and_numbers_and_continues_on_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/store"
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("method: {name: dino, jitter: {hue: 0.1}}\ntrainer: {steps: 4}\n")
    config = TrackersConfig(tensorboard=False, mlflow=MlflowConfig(uri=uri, experiment="birds"))

    first = Trackers(config, run, 0, pytest.fail)
    first.numbers(1, {"loss": 2.0, "loss/dino": 1.0, "odd(name)": 3.0, "warning": "text"})
    first.close("stopped")

    from mlflow import MlflowClient

    client, entry = MlflowClient(uri), json.loads((run / "trackers.json").read_text())["mlflow"]
    assert client.get_run(entry).info.status == "KILLED"
    again = Trackers(config, run, 1, pytest.fail)
    again.numbers(2, {"loss": 1.5})
    assert client.get_run(entry).info.status == "RUNNING"
    again.close("finished")

    found = client.get_run(entry)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params == {"method.name": "dino", "method.jitter.hue": "0.1", "trainer.steps": "4"}
    assert [(m.step, m.value) for m in client.get_metric_history(entry, "loss")] == [(1, 2.0), (2, 1.5)]
    assert found.data.metrics["odd_name_"] == 3.0
    assert len(client.search_runs([found.info.experiment_id])) == 1
