from dataclasses import replace

from asterism.evals.result import DataUsed, Result
from asterism.reports.write import verdict
from asterism.types import Model

DATA = DataUsed("scenes/test", 2000, "f")
KNN = Result(
    "knn",
    {"top1_k20": 55.24, "top5_k20": 90.0},
    constants={},
    model=Model("demo", 10),
    train=DATA,
    test=DATA,
    seconds=1.0,
    baselines={"untrained": {"top1_k20": 20.8}, "pixels": {"top1_k20": 37.0}},
)
REBUILT = replace(KNN, protocol="reconstruction", values={"psnr": 22.31}, baselines={"untrained": {"psnr": 6.0}})
LOGGED = [{"step": 0, "knn": 10.0}, {"step": 9, "knn": 30.0}]


def test_the_sentence_compares_with_the_untrained_network_and_with_pixels() -> None:
    assert verdict([KNN, REBUILT], LOGGED) == (
        "Learned without labels: the 20 nearest neighbours name the class of 55.2 % of 2,000 held-out images, against "
        "20.8 % with the untrained network and 37.0 % with raw pixels; images rebuilt from its concepts alone reach "
        "22.3 dB."
    )


def test_the_sentence_has_the_number_of_neighbours_of_the_card() -> None:
    """The first value is that of the card."""
    values = {"top1_k10": 60.0, "top1_k20": 50.0}
    two = replace(KNN, values=values, baselines={"pixels": {"top1_k10": 30.0, "top1_k20": 40.0}})
    assert "the 10 nearest neighbours name the class of 60.0 %" in verdict([two], LOGGED)
    assert "against 30.0 % with raw pixels" in verdict([two], LOGGED)


def test_no_lead_is_claimed_where_there_is_none() -> None:
    behind = replace(KNN, baselines={"untrained": {"top1_k20": 20.8}, "pixels": {"top1_k20": 54.9}})
    assert verdict([behind], LOGGED).startswith("Not ahead of everything")


def test_a_trained_model_beside_it_does_not_change_what_was_learned() -> None:
    beside = replace(KNN, baselines=KNN.baselines | {"nano": {"top1_k20": 60.0}})
    said = verdict([beside], LOGGED)
    assert said.startswith("Learned without labels")
    assert said.endswith("37.0 % with raw pixels and 60.0 % with nano.")


def test_without_an_evaluation_training_has_the_word() -> None:
    assert verdict([REBUILT, replace(KNN, baselines={})], LOGGED).startswith("Learned: k-NN accuracy")
    assert verdict([], []) == ""
