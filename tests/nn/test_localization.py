import torch

from asterism.nn.localization import Localization


def test_against_loops() -> None:
    torch.manual_seed(0)
    localization = Localization(4, temperature=0.5)
    patches, concepts = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    where = localization(patches, concepts)
    for b in range(2):
        for n in range(5):
            u = localization.dense(patches[b, n])
            cosines = [torch.cosine_similarity(u, localization.sparse(s), dim=0) for s in concepts[b]]
            torch.testing.assert_close(where[b, n], torch.softmax(torch.stack(cosines) / 0.5, dim=0))
    torch.testing.assert_close(where.sum(dim=-1), torch.ones(2, 5))
