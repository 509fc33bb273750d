"""Where the golden vectors and the small real data sets are."""

import os
from pathlib import Path

_SHARED = Path(__file__).parents[2] / "shared"

GOLDEN = Path(os.environ.get("ASTERISM_GOLDEN", _SHARED / "golden"))
REAL_DATA = Path(os.environ.get("ASTERISM_DATA", _SHARED / "data"))
