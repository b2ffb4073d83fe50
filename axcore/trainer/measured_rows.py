"""`MeasuredRows`: what is compared over all rows of an evaluation, not batch by batch."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from axcore.module import RowMeasure


class MeasuredRows:
    """Keeps what is captured of rows, up to as many as a measure asks for.

    Args:
        measure: Of the task; None keeps nothing.
    """

    def __init__(self, measure: RowMeasure | None) -> None:
        self._measure = measure
        self._parts: list[Mapping[str, Any]] = []
        self._num_rows = 0

    def add(self, rows: Mapping[str, Any]) -> None:
        """Keep the rows of a batch, which are on the devices; drop them where there are enough."""
        if self._measure is not None and self._num_rows < self._measure.num_rows:
            self._parts.append(rows)
            self._num_rows += len(next(iter(rows.values())))

    def measures(self) -> Mapping[str, float]:
        """Return what is measured of them; nothing where there are none."""
        if self._measure is None or not self._parts:
            return {}
        parts, most = jax.device_get(self._parts), self._measure.num_rows
        joined = {name: np.concatenate([one[name] for one in parts])[:most] for name in parts[0]}
        return self._measure.measure(joined)
