"""Products of a few rows with a weight, as programs of the host.

Letters: R rows, K input, N output; G groups of K that share a scale in each column.

`[R, K] x [K, N]` goes by panels of columns: their sums stay in registers while the panel is read
once, for some rows at a time. `[R, K] x [N, K]` goes by a few rows of the weight. Each sum is
added up in the same order whatever the number of rows is, so a row's result is the same to the bit
beside any others.
"""

import attrs

from axl_cpu.llvm.emitter import Emitter, Value
from axl_cpu.llvm.host_call import Buffers
from axl_cpu.llvm.numbers import widened

PARTS_PER_THREAD = 4
"""So that a thread that is late, or has other work, holds the others up for little."""


def rows_at_once(num_vectors: int) -> int:
    """Returns how many rows of x are added up together, given the vectors that registers hold."""
    return num_vectors // 4


@attrs.frozen(kw_only=True)
class ColumnPanels:
    """`y = x @ (weight * scale)`, of `x [R, K]`, weight `[K, N]` and scale `[G, N]`.

    Arguments are x, the weight, and the scale where there is one; x and y are float32.

    Args:
        rows: R.
        dtype: Of the weight; `int4` keeps row `k` and row `k + K / 2` in a byte.
        columns: Vectors of columns in a panel.
        scaling: Whether there is a scale, for each column or for groups of it.
    """

    rows: int
    dtype: str
    columns: int
    scaling: str = "none"

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        return f"columns_{self.rows}x{self.columns}_{self.dtype}_{self.scaling}"

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Writes how many parts there are."""
        return e.min(self._num_panels(e, buffers), e.mul(threads, PARTS_PER_THREAD))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Writes the computation of some panels, of which the last may reach back."""
        panels, num_columns = self._num_panels(e, buffers), buffers.size(1, 1)
        last_start = e.sub(num_columns, self.columns * e.lanes)
        together = rows_at_once(e.num_vectors)
        whole, rest = divmod(self.rows, together)

        def panel(index: Value, _: object) -> tuple[()]:
            column = e.min(e.mul(index, self.columns * e.lanes), last_start)
            some = lambda first, rows: _Panel(self, e, buffers, column, first, rows).emit()  # noqa: E731
            if whole > 1:
                e.loop(0, whole * together, together, (), lambda i, _: some(i, together))
            elif whole:
                some(e.whole(0), together)
            if rest:
                some(e.whole(whole * together), rest)
            return ()

        first = e.div(e.mul(part, panels), parts)
        e.loop(first, e.div(e.mul(e.add(part, 1), panels), parts), 1, (), panel)

    def _num_panels(self, e: Emitter, buffers: Buffers) -> Value:
        width = self.columns * e.lanes
        return e.div(e.add(buffers.size(1, 1), width - 1), width)


class _Panel:
    """The columns of a panel for some rows."""

    def __init__(
        self,
        form: ColumnPanels,
        e: Emitter,
        buffers: Buffers,
        column: Value,
        first_row: Value,
        rows: int,
    ) -> None:
        self.form, self.e, self.rows = form, e, rows
        self.depth, self.num_columns = buffers.size(0, 1), buffers.size(1, 1)
        self.x = e.at(buffers.argument(0), e.mul(first_row, self.depth))
        stored = "int8" if form.dtype == "int4" else form.dtype
        self.weight = e.at(buffers.argument(1), column, stored)
        y_at = e.add(e.mul(first_row, self.num_columns), column)
        self.y = e.at(buffers.result(0), y_at)
        self.half = buffers.size(1, 0)
        if form.scaling != "none":
            self.num_groups = buffers.size(2, 0)
            self.scale = e.at(buffers.argument(2), column)

    def emit(self) -> tuple[()]:
        e, form = self.e, self.form
        sums = [e.full(0.0)] * (self.rows * form.columns)
        if form.scaling == "groups":
            halves = 2 if form.dtype == "int4" else 1
            per_half = e.div(self.num_groups, halves)
            size = e.div(self.half, per_half)

            def group(g: Value, sums: list[Value]) -> list[Value]:
                scales = [
                    self._scales(e.add(g, e.mul(per_half, half))) for half in range(halves)
                ]
                start = e.mul(g, size)
                return self._rows(start, e.add(start, size), sums, scales)

            sums = e.loop(0, per_half, 1, sums, group)
        else:
            sums = self._rows(e.whole(0), self.half, sums, None)
        if form.scaling == "columns":
            scales = self._scales(e.whole(0)) * self.rows
            sums = [e.build.fmul(one, scale) for one, scale in zip(sums, scales, strict=True)]
        for index, one in enumerate(sums):
            row, column = divmod(index, form.columns)
            e.store(one, e.at(e.at(self.y, e.mul(self.num_columns, row)), column * e.lanes))
        return ()

    def _scales(self, group: Value) -> list[Value]:
        e = self.e
        start = e.at(self.scale, e.mul(group, self.num_columns))
        return [e.load_vector(e.at(start, j * e.lanes)) for j in range(self.form.columns)]

    def _rows(
        self, start: Value, stop: Value, sums: list[Value], scales: list[list[Value]] | None
    ) -> list[Value]:
        """Adds the products with rows of the weight, several at a time as long as they last."""
        e = self.e
        unrolled = 4 if self.form.columns <= 4 else 2

        def several(count: int):  # type: ignore[no-untyped-def]
            def body(k: Value, sums: list[Value]) -> list[Value]:
                for step in range(count):
                    sums = self._row(e.add(k, step), sums, scales)
                return sums

            return body

        main = e.add(start, e.mul(e.div(e.sub(stop, start), unrolled), unrolled))
        sums = e.loop(start, main, unrolled, sums, several(unrolled))
        return e.loop(main, stop, 1, sums, several(1))

    def _row(
        self, k: Value, sums: list[Value], scales: list[list[Value]] | None
    ) -> list[Value]:
        """Adds the products with a row of the weight, or with the two that share its bytes."""
        e, form, sums = self.e, self.form, list(sums)
        stored = "int8" if form.dtype == "int4" else form.dtype
        row = e.at(self.weight, e.mul(k, self.num_columns), stored)
        columns = [
            widened(e, e.at(row, j * e.lanes, stored), form.dtype) for j in range(form.columns)
        ]
        for half, weights in enumerate(zip(*columns, strict=True)):
            if scales is not None:
                pairs = zip(weights, scales[half], strict=True)
                weights = [e.build.fmul(one, scale) for one, scale in pairs]
            place = e.add(k, self.half) if half else k
            for r in range(self.rows):
                x = e.splat(e.load(e.at(self.x, e.add(e.mul(self.depth, r), place))))
                for j, weight in enumerate(weights):
                    index = r * form.columns + j
                    sums[index] = e.fma(x, weight, sums[index])
        return sums


@attrs.frozen(kw_only=True)
class RowDots:
    """`y = x @ weight.T`, of `x [R, K]` and weight `[N, K]`; x and y are float32.

    Args:
        rows: R.
        dtype: Of the weight.
        weights: Rows of the weight at a time.
    """

    rows: int
    dtype: str
    weights: int

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        return f"rows_{self.rows}x{self.weights}_{self.dtype}"

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Writes how many parts there are."""
        return e.min(self._num_blocks(e, buffers), e.mul(threads, PARTS_PER_THREAD))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Writes the computation of some blocks of the weight, of which the last may reach back."""
        blocks = self._num_blocks(e, buffers)
        last_start = e.sub(buffers.size(1, 0), self.weights)
        together = rows_at_once(e.num_vectors)
        whole, rest = divmod(self.rows, together)

        def block(index: Value, _: object) -> tuple[()]:
            start = e.min(e.mul(index, self.weights), last_start)
            if whole:
                step = lambda i, _: self._some(e, buffers, start, i, together)  # noqa: E731
                e.loop(0, whole * together, together, (), step)
            if rest:
                self._some(e, buffers, start, e.whole(whole * together), rest)
            return ()

        first = e.div(e.mul(part, blocks), parts)
        e.loop(first, e.div(e.mul(e.add(part, 1), blocks), parts), 1, (), block)

    def _num_blocks(self, e: Emitter, buffers: Buffers) -> Value:
        return e.div(e.add(buffers.size(1, 0), self.weights - 1), self.weights)

    def _some(
        self, e: Emitter, buffers: Buffers, start: Value, first_row: Value, rows: int
    ) -> tuple[()]:
        depth = buffers.size(0, 1)
        x = e.at(buffers.argument(0), e.mul(first_row, depth))
        weight = e.at(buffers.argument(1), e.mul(start, depth), self.dtype)

        def body(k: Value, sums: list[Value]) -> list[Value]:
            sums = list(sums)
            weights = [
                widened(e, e.at(weight, e.add(e.mul(depth, n), k), self.dtype), self.dtype)[0]
                for n in range(self.weights)
            ]
            for r in range(rows):
                xs = e.load_vector(e.at(x, e.add(e.mul(depth, r), k)))
                for n, one in enumerate(weights):
                    sums[r * self.weights + n] = e.fma(xs, one, sums[r * self.weights + n])
            return sums

        sums = e.loop(0, depth, e.lanes, [e.full(0.0)] * (rows * self.weights), body)
        y = e.at(buffers.result(0), e.add(e.mul(first_row, buffers.size(1, 0)), start))
        for index, one in enumerate(sums):
            row, n = divmod(index, self.weights)
            e.store(e.sum(one), e.at(e.at(y, e.mul(buffers.size(1, 0), row)), n))
        return ()
