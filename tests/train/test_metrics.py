from asterism.train.metrics import MetricsLog, read_metrics


def test_lines_beyond_the_checkpoint_are_dropped_on_resume(tmp_path):
    log = MetricsLog(tmp_path, 0)
    for step in (10, 20, 30):
        log.write(step, {"loss": float(step)})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # truncated by a crash
    log = MetricsLog(tmp_path, 20)
    log.write(30, {"loss": 31.0})
    log.close()
    assert read_metrics(tmp_path) == [
        {"step": 10, "loss": 10.0},
        {"step": 20, "loss": 20.0},
        {"step": 30, "loss": 31.0},
    ]
