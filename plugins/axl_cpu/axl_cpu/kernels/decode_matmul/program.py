"""Products of a few rows with a weight, as programs of the host.

Letters: R rows, K input, N output; G groups of K that share a scale in each column.

Time goes by reading the weight, so each program goes over it in the order in which its sums stay
nearest: those of one row in the first cache while the weight is read as it lies, those of more rows
in registers while a panel of columns is. Either way K is cut into `CHUNKS`, whose sums
are added up in order: so a row's result is the same to the bit beside any others.
"""

from collections.abc import Callable, Sequence

import attrs

from axl_cpu.llvm.emitter import Emitter, Value
from axl_cpu.llvm.host_call import Buffers
from axl_cpu.llvm.numbers import widened

CHUNKS = 4
"""Parts of K."""

PARTS_PER_THREAD = 4
"""So that a thread that is late, or has other work, holds the others up for little."""

AHEAD = 32
"""Rows of a weight by which memory is asked for a panel's columns: processors do not foresee them,
as each lies in another page."""

COLUMNS_IN_CACHE = 2048
"""So many sums of a row stay in the first cache."""

ROWS_PER_ADDITION = 8
"""Rows of a weight after which sums that lie in the cache are written."""


def rows_at_once(num_vectors: int) -> int:
    """Returns how many rows of x are added up together, given the vectors that registers hold."""
    return num_vectors // 4


@attrs.frozen(kw_only=True)
class ColumnProducts:
    """`x @ (weight * scale)`, of `x [R, K]`, weight `[K, N]` and scale `[G, N]`.

    Arguments are x, the weight, and the scale where there is one; x and the result are float32. The
    numbers of x that a row of the weight is multiplied with lie together: x has its rows last.

    Args:
        rows: R.
        dtype: Of the weight; `int4` keeps row `k` and row `k + K / 2` in a byte.
        columns: Vectors of columns in a panel.
        has_groups: Whether there are scales of several groups; those of whole columns are no part
            of this.
    """

    rows: int
    dtype: str
    columns: int
    has_groups: bool = False

    def _choices(self) -> str:
        groups = "_groups" if self.has_groups else ""
        return f"{self.rows}x{self.columns}_{self.dtype}{groups}"


class ColumnPanels(ColumnProducts):
    """Products for several rows: a panel of columns after the other, `y [R, N]`."""

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        return f"columns_{self._choices()}"

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Writes how many parts there are."""
        return e.min(self._num_panels(e, buffers), e.mul(threads, PARTS_PER_THREAD))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Writes the computation of some panels, of which the last may reach back."""
        last_start = e.sub(buffers.size(1, 1), self.columns * e.lanes)
        weight = _Weight(self, e, buffers)
        totals = e.room(rows_at_once(e.num_vectors) * self.columns * e.lanes)

        def some(column: Value, first: Value, rows: int) -> None:
            self._some(e, weight, totals, column, first, rows)

        def panel(index: Value) -> None:
            column = e.min(e.mul(index, self.columns * e.lanes), last_start)
            _by_rows(e, buffers, self.rows, lambda first, rows: some(column, first, rows))

        _shared(e, self._num_panels(e, buffers), part, parts, panel)

    def _some(
        self,
        e: Emitter,
        weight: "_Weight",
        totals: Value,
        column: Value,
        first: Value,
        rows: int,
    ) -> None:
        """Writes a panel of some rows; the sums of chunks before lie in `totals` meanwhile."""
        kept = [e.at(totals, index * e.lanes) for index in range(rows * self.columns)]
        for place in kept:
            e.store(e.full(0.0), place)

        def chunk(index: Value, _: object) -> tuple[()]:
            begin, end = weight.chunk(index)
            sums = weight.sums(begin, end, column, first, rows, ahead=AHEAD)
            for place, one in zip(kept, sums, strict=True):
                e.store(e.build.fadd(e.load_vector(place), one), place)
            return ()

        e.loop(0, CHUNKS, 1, (), chunk)
        for place, final in zip(kept, weight.places(column, first, rows), strict=True):
            e.store(e.load_vector(place), final)

    def _num_panels(self, e: Emitter, buffers: Buffers) -> Value:
        width = self.columns * e.lanes
        return e.div(e.add(buffers.size(1, 1), width - 1), width)


class RowChunks(ColumnProducts):
    """Products for one row, as the sums of chunks of K: `y [CHUNKS, N]`."""

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        return f"chunks_{self._choices()}"

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Writes how many parts there are: chunks, of some columns each."""
        return e.mul(self._num_blocks(e, buffers), CHUNKS)

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Writes the computation of a chunk for some columns."""
        blocks, width = self._num_blocks(e, buffers), self.columns * e.lanes
        index, block = e.div(part, blocks), e.rem(part, blocks)
        num_columns = buffers.size(1, 1)
        weight = _Weight(self, e, buffers, index)
        first, behind = weight.chunk(index)
        panels = e.div(num_columns, width)
        start = e.mul(e.div(e.mul(block, panels), blocks), width)
        stop = e.mul(e.div(e.mul(e.add(block, 1), panels), blocks), width)
        places = lambda column: weight.places(column, e.whole(0), 1)  # noqa: E731

        def each_panel(what: Callable[[Value], None]) -> None:
            def body(column: Value, _: object) -> tuple[()]:
                what(column)
                return ()

            e.loop(start, stop, width, (), body)

        def cleared(column: Value) -> None:
            for place in places(column):
                e.store(e.full(0.0), place)

        def added(begin: Value, end: Value) -> Callable[[Value], None]:
            def of_panel(column: Value) -> None:
                held = [e.load_vector(place) for place in places(column)]
                sums = weight.sums(begin, end, column, e.whole(0), 1, held)
                for place, one in zip(places(column), sums, strict=True):
                    e.store(one, place)

            return of_panel

        each_panel(cleared)
        step = 1 if self.has_groups else ROWS_PER_ADDITION

        def some_rows(begin: Value, _: object) -> tuple[()]:
            each_panel(added(begin, e.min(e.add(begin, step), behind)))
            return ()

        e.loop(first, behind, step, (), some_rows)
        self._rest(e, weight, block, blocks, num_columns)

    def _rest(
        self, e: Emitter, weight: "_Weight", block: Value, blocks: Value, num_columns: Value
    ) -> None:
        """Writes columns behind the last whole panel, with some before: the same sums again."""
        width = self.columns * e.lanes
        is_last = e.div(e.add(block, 1), blocks)
        has_rest = e.min(e.rem(num_columns, width), 1)

        def rest(_: Value, __: object) -> tuple[()]:
            column = e.sub(num_columns, width)
            begin, end = weight.chunk(weight.first_row)
            sums = weight.sums(begin, end, column, e.whole(0), 1)
            for place, one in zip(weight.places(column, e.whole(0), 1), sums, strict=True):
                e.store(one, place)
            return ()

        e.loop(0, e.mul(is_last, has_rest), 1, (), rest)

    def _num_blocks(self, e: Emitter, buffers: Buffers) -> Value:
        whole = e.div(e.add(buffers.size(1, 1), COLUMNS_IN_CACHE - 1), COLUMNS_IN_CACHE)
        return e.max(whole, 1)


class _Weight:
    """A weight, and what it is multiplied with: emits sums of products over some of its rows.

    Steps are rows of the weight as it lies, or groups of them that share scales.
    """

    def __init__(
        self, form: ColumnProducts, e: Emitter, buffers: Buffers, first_row: Value | None = None
    ) -> None:
        self.form, self.e = form, e
        self.first_row = e.whole(0) if first_row is None else first_row
        self.num_columns = buffers.size(1, 1)
        self.stored = "int8" if form.dtype == "int4" else form.dtype
        self.x, self.weight, self.y = buffers.argument(0), buffers.argument(1), buffers.result(0)
        self.height = buffers.size(1, 0)
        self.num_steps = self.height
        if form.has_groups:
            self.scale = buffers.argument(2)
            self.num_steps = e.div(buffers.size(2, 0), 2 if form.dtype == "int4" else 1)
            self.group_size = e.div(self.height, self.num_steps)

    def chunk(self, index: Value) -> tuple[Value, Value]:
        """Returns the first step of a chunk, and that behind its last."""
        begin, end = (e_index for e_index in (index, self.e.add(index, 1)))
        of_all = lambda at: self.e.div(self.e.mul(self.num_steps, at), CHUNKS)  # noqa: E731
        return of_all(begin), of_all(end)

    def places(self, column: Value, first: Value, rows: int) -> list[Value]:
        """Returns where the sums of a panel lie, by row and vector."""
        e, found = self.e, []
        for row in range(rows):
            start = e.mul(e.add(e.add(self.first_row, first), row), self.num_columns)
            at = e.at(self.y, e.add(start, column))
            found += [e.at(at, j * e.lanes) for j in range(self.form.columns)]
        return found

    def sums(
        self,
        begin: Value,
        end: Value,
        column: Value,
        first: Value,
        rows: int,
        start: Sequence[Value] | None = None,
        *,
        ahead: int = 0,
    ) -> Sequence[Value]:
        """Returns sums over steps, for rows of x from the first on, by row and vector."""
        e, form = self.e, self.form
        sums: Sequence[Value] = start or [e.full(0.0)] * (rows * form.columns)
        if not form.has_groups:
            return self._over_rows(begin, end, sums, column, first, rows, ahead, None)

        def group(g: Value, sums: Sequence[Value]) -> Sequence[Value]:
            scales = [self._scales(g, column)]
            if form.dtype == "int4":
                scales.append(self._scales(e.add(g, self.num_steps), column))
            at = e.mul(g, self.group_size)
            stop = e.add(at, self.group_size)
            return self._over_rows(at, stop, sums, column, first, rows, ahead, scales)

        return e.loop(begin, end, 1, sums, group)

    def _scales(self, group: Value, column: Value) -> list[Value]:
        e = self.e
        at = e.at(self.scale, e.add(e.mul(group, self.num_columns), column))
        return [e.load_vector(e.at(at, j * e.lanes)) for j in range(self.form.columns)]

    def _over_rows(
        self,
        begin: Value,
        end: Value,
        sums: Sequence[Value],
        column: Value,
        first: Value,
        rows: int,
        ahead: int,
        scales: list[list[Value]] | None,
    ) -> Sequence[Value]:
        """Adds the products with rows of the weight, several at a time as long as they last."""
        e = self.e
        unrolled = 4 if ahead else ROWS_PER_ADDITION

        def several(count: int) -> Callable[[Value, Sequence[Value]], Sequence[Value]]:
            def body(k: Value, sums: Sequence[Value]) -> Sequence[Value]:
                for step in range(count):
                    sums = self._row(e.add(k, step), sums, column, first, rows, ahead, scales)
                return sums

            return body

        main = e.add(begin, e.mul(e.div(e.sub(end, begin), unrolled), unrolled))
        sums = e.loop(begin, main, unrolled, sums, several(unrolled))
        return e.loop(main, end, 1, sums, several(1))

    def _row(
        self,
        k: Value,
        sums: Sequence[Value],
        column: Value,
        first: Value,
        rows: int,
        ahead: int,
        scales: list[list[Value]] | None,
    ) -> list[Value]:
        """Adds the products with a row of the weight, or with the two that share its bytes."""
        e, form, sums = self.e, self.form, list(sums)
        row = e.at(self.weight, e.add(e.mul(k, self.num_columns), column), self.stored)
        if ahead:
            later = e.at(row, e.mul(self.num_columns, ahead), self.stored)
            for j in range(0, form.columns):
                e.prefetch(e.at(later, j * e.lanes, self.stored))
        vectors = [
            widened(e, e.at(row, j * e.lanes, self.stored), form.dtype)
            for j in range(form.columns)
        ]
        for half, weights in enumerate(zip(*vectors, strict=True)):
            if scales is not None:
                pairs = zip(weights, scales[half], strict=True)
                weights = tuple(e.build.fmul(one, scale) for one, scale in pairs)
            place = e.add(k, self.height) if half else k
            numbers = e.at(self.x, e.add(e.mul(place, form.rows), first))
            for r in range(rows):
                x = e.splat(e.load(e.at(numbers, r)))
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
        last_start = e.sub(buffers.size(1, 0), self.weights)

        def block(index: Value) -> None:
            start = e.min(e.mul(index, self.weights), last_start)
            some = lambda first, rows: self._some(e, buffers, start, first, rows)  # noqa: E731
            _by_rows(e, buffers, self.rows, some)

        _shared(e, self._num_blocks(e, buffers), part, parts, block)

    def _num_blocks(self, e: Emitter, buffers: Buffers) -> Value:
        return e.div(e.add(buffers.size(1, 0), self.weights - 1), self.weights)

    def _some(
        self, e: Emitter, buffers: Buffers, start: Value, first_row: Value, rows: int
    ) -> None:
        depth = buffers.size(0, 1)
        x = e.at(buffers.argument(0), e.mul(first_row, depth))
        weight = e.at(buffers.argument(1), e.mul(start, depth), self.dtype)
        later = e.at(weight, e.mul(depth, self.weights), self.dtype)

        def body(k: Value, sums: Sequence[Value]) -> list[Value]:
            sums = list(sums)
            offsets = [e.add(e.mul(depth, n), k) for n in range(self.weights)]
            weights = [widened(e, e.at(weight, at, self.dtype), self.dtype)[0] for at in offsets]
            if rows > 1:
                for at in offsets:
                    e.prefetch(e.at(later, at, self.dtype))
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


def _shared(
    e: Emitter, count: Value, part: Value, parts: Value, what: Callable[[Value], None]
) -> None:
    """Writes `what` of a part's share of so many things."""

    def body(index: Value, _: object) -> tuple[()]:
        what(index)
        return ()

    first = e.div(e.mul(part, count), parts)
    e.loop(first, e.div(e.mul(e.add(part, 1), count), parts), 1, (), body)


def _by_rows(
    e: Emitter, buffers: Buffers, num_rows: int, what: Callable[[Value, int], None]
) -> None:
    """Writes `what` of some rows from a first one on, until all had their turn."""
    together = rows_at_once(e.num_vectors)
    whole, rest = divmod(num_rows, together)

    def body(first: Value, _: object) -> tuple[()]:
        what(first, together)
        return ()

    if whole:  # a number that LLVM does not know, so that it does not write the loop out
        e.loop(0, e.sub(buffers.size(0, 0), rest), together, (), body)
    if rest:
        what(e.whole(whole * together), rest)
