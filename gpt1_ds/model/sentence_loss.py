"""What trains sentence vectors (Reimers and Gurevych 2019, section 3), and the cosine that judges them.

Shapes: B rows, E examples of C adjacent rows, D width, K classes, G examples of a group.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec

SCALE = 20.0  # of the cosines that a softmax is over, as in the authors' library


class SentenceLoss:
    """Outputs: hidden states (unread), vectors [B, D], of nli also logits [E, K]. Labels: those of the language
    model's loss and a position (unread); targets [E, K]; the weight [E] of each example.

    A target of one column is the pair's score from 0 to 1, whatever the loss is: its squared difference from the cosine
    counts. Scores are the cosines [E, 1] of the first two texts.

        nli       cross-entropy of the logits
        triplet   max(|a - p| - |a - n| + margin, 0), Euclid's distances
        cosine    (cos(u, v) - score)^2
        ranking   cross-entropy of SCALE x cos(u, v) over the second texts v of the example's group of G
    """

    def __init__(self, spec: HeadSpec) -> None:
        self.spec = spec
        self.scores: list[Tensor] = []
        self.measures: list[dict[str, Tensor]] = []

    def __call__(self, outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        _hidden, vectors_BD, *logits = outputs
        *_, targets_EK, weights_E = labels
        texts = vectors_BD.view(len(weights_E), -1, vectors_BD.shape[-1]).unbind(1)  # C of [E, D]
        cosine_E = F.cosine_similarity(texts[0], texts[1], dim=-1)
        self.scores.append(cosine_E.detach().unsqueeze(1))
        if targets_EK.shape[1] == 1:
            loss_E = (cosine_E - targets_EK[:, 0]).square()
        elif self.spec.loss == "nli":
            loss_E = -(targets_EK * logits[0].float().log_softmax(-1)).sum(-1)
        elif self.spec.loss == "triplet":
            near_E, far_E = (F.pairwise_distance(texts[0], other) for other in texts[1:])
            loss_E = (near_E - far_E + self.spec.margin).relu()
        else:
            loss_E = _ranking(texts[0], texts[1], self.spec.group)
        loss: Tensor = (loss_E * weights_E).sum()
        return loss


def _ranking(u_ED: Tensor, v_ED: Tensor, group: int) -> Tensor:
    """[E]: a group never reaches beyond a micro-batch, so that no layout changes it."""
    u_NGD, v_NGD = (F.normalize(part, dim=-1).unflatten(0, (-1, group)) for part in (u_ED, v_ED))
    cosine_NGG = u_NGD @ v_NGD.transpose(1, 2)
    right_NG = (SCALE * cosine_NGG).log_softmax(-1).diagonal(dim1=1, dim2=2)
    loss_E: Tensor = -right_NG.flatten()
    return loss_E
