import math

from asterism.train.collapse import CollapseWatch

UNIFORM = {"cls": math.log(1024), "patch": math.log(64)}
HEALTHY = {"loss": 5.0, "loss/cls": 3.0, "loss/patch": 2.0, "effective_rank": 20.0, "feature_std": 0.8}


def test_a_healthy_run_is_left_in_peace():
    watch = CollapseWatch(UNIFORM)
    assert all(watch.look(HEALTHY) is None for _ in range(200))


def test_a_loss_flat_at_ln_k_is_named_once():
    watch = CollapseWatch(UNIFORM)
    said = [watch.look(HEALTHY | {"loss/cls": math.log(1024) * (1 + 1e-4)}) for _ in range(100)]
    messages = [message for message in said if message]
    assert len(messages) == 1
    assert "the loss 'cls' stands at ln K = 6.931" in messages[0]
    assert said[28] is None


def test_a_loss_that_only_passes_ln_k_is_not_a_collapse():
    watch = CollapseWatch(UNIFORM)
    losses = [math.log(1024)] * 29 + [6.0] + [math.log(1024)] * 29
    assert all(watch.look(HEALTHY | {"loss/cls": loss}) is None for loss in losses)


def test_rank_near_one_is_named():
    watch = CollapseWatch({})
    said = [watch.look(HEALTHY | {"effective_rank": 1.02}) for _ in range(10)]
    assert [bool(message) for message in said] == [False] * 4 + [True] + [False] * 5
    assert "effective rank 1.02" in said[4]


def test_equal_embeddings_are_named():
    watch = CollapseWatch({})
    assert any("collapsed" in (watch.look(HEALTHY | {"feature_std": 1e-4}) or "") for _ in range(5))
