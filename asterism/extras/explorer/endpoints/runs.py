"""Training curves of the explored runs, also while they train."""

from __future__ import annotations

from asterism.extras.explorer.answers import Answer, Refused, as_json
from asterism.extras.explorer.endpoints.endpoint import Endpoint
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.query import Query
from asterism.train.metrics import read_metrics

_MOST_RECORDS = 4000  # of a run; longer logs are thinned evenly


def curves(explored: Explored, query: Query) -> Answer:
    """The records after a step. A run that is still training has new ones every time."""
    model = explored.model(query)
    after = query.integer("after", -1, (1 << 62), -1)
    if model.run is None:
        raise Refused(f"{model.name} is not a run folder, so it has no training curves", 409)
    records = [record for record in read_metrics(model.run) if record["step"] > after]
    every = -(-len(records) // _MOST_RECORDS) or 1
    return as_json({"records": records[::-1][::every][::-1]})  # always with the newest one


ENDPOINTS = (Endpoint("runs/curves", curves, ("model", "after")),)
