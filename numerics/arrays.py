"""Names for the arrays that everything else is written in."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Vector = NDArray[np.floating[Any]]
