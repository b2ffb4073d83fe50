"""Products of rows with a weight, as programs of the host.

Letters: R rows, K input, N output; G groups of K that share a scale in each column; S rows whose
sums are in registers together, for some vectors of columns, while these are read.

Each sum is added up in the order of K whatever the number of rows is: so a row's result is the same
to the bit whatever the others are.
"""

from collections.abc import Callable, Sequence

import attrs

from axl_cpu.llvm.emitter import Emitter, Value
from axl_cpu.llvm.host_call import Buffers
from axl_cpu.llvm.numbers import INT4_FACTORS, widened

PARTS_PER_THREAD = 8
"""So that a thread that is late, or has other work, holds the others up for little."""

BATCHES_OF_A_PART = 4
"""Of S rows, at least, where rows are split: each split reads its part of the weight again."""

LINE_BYTES = 64
"""Of what memory is read in."""

LINES_AHEAD = 32
"""Rows by which memory is asked for what comes: processors see too little of it by themselves."""


def rows_at_once(num_vectors: int) -> int:
    """Return the largest S, given the vectors that registers hold."""
    # Each row takes at least one register of sums for each vector of columns, and with a quarter
    # of the registers as rows three vectors of columns fit next to them.
    return num_vectors // 4


def columns_at_once(rows: int, num_vectors: int, most: int) -> int:
    """Return how many vectors of columns registers hold next to their sums with S rows."""
    # Of V vectors of columns: V S sums, V weights, and one register for a number of x.
    return max(1, min(most, (num_vectors - 1) // (rows + 1)))


@attrs.frozen(kw_only=True)
class ColumnSums:
    """`y = x @ (weight * scale)`, for any number of rows.

    Arguments are x `[R / S, S, K]` with S last in memory, the weight, `[K, N]` or `[P, K, C]` in
    panels, and scales `[G, N]` or `[P, G, C]` where there are groups; x and y are float32. y has a
    row for each of x, of `row_size` numbers.

    Args:
        rows: S.
        dtype: Of the weight; `int4` keeps row `k` and row `k + K / 2` in a byte.
        columns: Vectors of columns that are added up together.
        panel_width: C; None for a weight that is a matrix.
        panels: How many panels are read together: of one row, more places of memory at once than
            one.
        is_read_once: Whether x has no more rows than S. Then the weight takes less of the room in
            caches that all else needs between two products.
        has_groups: Whether there are scales of several groups; those of full columns are not part
            of this.
    """

    rows: int
    dtype: str
    columns: int
    panel_width: int | None = None
    panels: int = 1
    is_read_once: bool = False
    has_groups: bool = False

    @property
    def factors(self) -> tuple[float, ...]:
        """What numbers that share a byte are to be multiplied by, as `widened` gives them."""
        return INT4_FACTORS if self.dtype == "int4" else (1.0,)

    @property
    def halves(self) -> int:
        """Numbers that share a byte."""
        return len(self.factors)

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        form = "matrix"
        if self.panel_width is not None:
            form = f"{self.panels}_panels{self.panel_width}"
        groups = "_groups" if self.has_groups else ""
        once = "_once" if self.is_read_once else ""
        return f"{form}_{self.rows}x{self.columns}_{self.dtype}{groups}{once}"

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Write how many parts there are: strips of columns, of some rows where these are many."""
        strips = self._num_strips(e, buffers)
        wanted = e.mul(threads, PARTS_PER_THREAD)
        # Rows are split only where strips are too few for all threads, since each split reads its
        # strip of the weight again.
        splits = e.div(e.add(wanted, e.sub(strips, 1)), strips)
        most = e.div(buffers.size(0, 0), BATCHES_OF_A_PART)
        return e.mul(strips, e.max(e.min(splits, most), 1))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Write the products of some rows with a strip, of which the last may reach back."""
        strips = self._num_strips(e, buffers)
        splits = e.div(parts, strips)
        index, split = e.div(part, splits), e.rem(part, splits)
        # One strip for all its rows, so that what it reads of the weight is in a core's cache
        # after the first batch.
        strip = _Strip(self, e, buffers, index)
        batches = buffers.size(0, 0)

        def batch(number: Value, _: object) -> tuple[()]:
            strip.emit(number)
            return ()

        first = e.div(e.mul(split, batches), splits)
        e.loop(first, e.div(e.mul(e.add(split, 1), batches), splits), 1, (), batch)

    def _num_strips(self, e: Emitter, buffers: Buffers) -> Value:
        width = self.columns * e.lanes
        if self.panels > 1:
            return e.div(e.add(buffers.size(1, 0), self.panels - 1), self.panels)
        if self.panel_width is not None:
            return e.mul(buffers.size(1, 0), self.panel_width // width)
        return e.div(e.add(buffers.size(1, 1), width - 1), width)


class _Strip:
    """Some columns of a weight: emits the sums of products with rows of x.

    Steps are rows of the weight as it is stored, or groups of them that share scales.
    """

    def __init__(self, form: ColumnSums, e: Emitter, buffers: Buffers, index: Value) -> None:
        self.form, self.e = form, e
        self.stored = "int8" if form.dtype == "int4" else form.dtype
        self.x, self.y = buffers.argument(0), buffers.result(0)
        self.depth, self.row_size = buffers.size(0, 2), buffers.result_size(0, 1)
        width = form.columns * e.lanes
        weight = buffers.argument(1)
        self.height = self.depth
        if form.dtype == "int4":
            self.height = e.div(self.depth, 2)
        if form.panel_width is None:
            self.stride = buffers.size(1, 1)
            # The last strip reaches back over columns of the one before: both write the same
            # numbers, and no strip needs a mask.
            self.column = e.min(e.mul(index, width), e.sub(self.stride, width))
            self.weight = e.at(weight, self.column, self.stored)
        else:
            self.stride = e.whole(form.panel_width)
            self.panel_size = e.mul(self.height, form.panel_width)
            self.column = e.mul(index, width)
            if form.panels > 1:
                last = e.mul(e.sub(buffers.size(1, 0), form.panels), form.panel_width)
                self.column = e.min(self.column, last)
            panel = e.div(self.column, form.panel_width)
            within = e.sub(self.column, e.mul(panel, form.panel_width))
            start = e.add(e.mul(panel, self.panel_size), within)
            self.weight = e.at(weight, start, self.stored)
        if form.has_groups:
            is_matrix = form.panel_width is None
            num_groups = buffers.size(2, 0 if is_matrix else 1)
            first = self.column
            if not is_matrix:
                self.scales_of_panel = e.mul(num_groups, form.panel_width)
                first = e.add(e.mul(panel, self.scales_of_panel), within)
            self.scale = e.at(buffers.argument(2), first)
            self.num_steps = e.div(num_groups, form.halves)
            self.group_size = e.div(self.height, self.num_steps)

    def emit(self, batch: Value) -> None:
        """Write the sums of a batch of S rows."""
        e, form = self.e, self.form
        x = e.at(self.x, e.mul(batch, e.mul(self.depth, form.rows)))
        # All sums stay in registers over all of K: the weight is the only thing that is
        # read from memory.
        sums: Sequence[Value] = [e.full(0.0)] * (form.rows * form.columns)
        # Numbers that share a byte have sums of their own, as they are kept by different factors.
        zeros = [e.full(0.0)] * (len(sums) * form.halves)
        if form.has_groups:

            def group(g: Value, sums: Sequence[Value]) -> Sequence[Value]:
                first = e.mul(g, self.group_size)
                # Sums of a group of their own, so that a scale multiplies them
                # and not each weight: once, where a group has 32.
                parts = self._over_rows(x, first, e.add(first, self.group_size), zeros)
                for half, factor in enumerate(form.factors):
                    scales = self._scales(e.add(g, e.mul(self.num_steps, half)))
                    if factor != 1:
                        scales = [e.build.fmul(one, e.full(factor)) for one in scales]
                    own = parts[half * len(sums) : (half + 1) * len(sums)]
                    sums = [
                        e.fma(part, scales[at % form.columns], sums[at])
                        for at, part in enumerate(own)
                    ]
                return sums

            sums = e.loop(0, self.num_steps, 1, sums, group)
        else:
            parts = self._over_rows(x, e.whole(0), self.height, zeros)
            for half, factor in enumerate(form.factors):
                own = parts[half * len(sums) : (half + 1) * len(sums)]
                sums = [
                    e.fma(part, e.full(factor), sums[at]) if factor != 1 else part
                    for at, part in enumerate(own)
                ]
        for index, one in enumerate(sums):
            row, vector = divmod(index, form.columns)
            column = e.add(self.column, vector * e.lanes)
            place = e.add(e.mul(e.add(e.mul(batch, form.rows), row), self.row_size), column)
            if form.panel_width is None:
                e.store(one, e.at(self.y, place))
            else:  # panels are filled up beyond the columns that y has
                with e.where(e.is_less(column, self.row_size)):
                    e.store(one, e.at(self.y, place))

    def _place(self, row: Value, vector: int, panel_size: Value | None, dtype: str) -> Value:
        """Return where a vector of a row is: in the next panel, where that one is over."""
        e, form = self.e, self.form
        if form.panels == 1:
            return e.at(row, vector * e.lanes, dtype)
        panel, vector = divmod(vector, form.columns // form.panels)
        return e.at(e.at(row, e.mul(panel_size, panel), dtype), vector * e.lanes, dtype)

    def _scales(self, group: Value) -> list[Value]:
        e, form = self.e, self.form
        at = e.at(self.scale, e.mul(group, self.stride))
        size = None if form.panel_width is None else self.scales_of_panel
        places = [self._place(at, j, size, "float32") for j in range(form.columns)]
        return [e.load_vector(place) for place in places]

    def _over_rows(
        self,
        x: Value,
        first: Value,
        behind: Value,
        sums: Sequence[Value],
    ) -> Sequence[Value]:
        """Add the products with rows of the weight, several at a time as long as they last."""
        e, unrolled = self.e, 4

        def several(count: int) -> Callable[[Value, Sequence[Value]], Sequence[Value]]:
            def body(k: Value, sums: Sequence[Value]) -> Sequence[Value]:
                for step in range(count):
                    sums = self._row(x, e.add(k, step), sums)
                return sums

            return body

        main = e.add(first, e.mul(e.div(e.sub(behind, first), unrolled), unrolled))
        sums = e.loop(first, main, unrolled, sums, several(unrolled))
        return e.loop(main, behind, 1, sums, several(1))

    def _row(self, x: Value, k: Value, sums: Sequence[Value]) -> list[Value]:
        """Add the products with a row of the weight, or with the two that share its bytes.

        Each of the two has sums of its own, one after the other.
        """
        e, form, sums = self.e, self.form, list(sums)
        row = e.at(self.weight, e.mul(k, self.stride), self.stored)
        ahead = e.mul(self.stride, LINES_AHEAD)
        size = None if form.panel_width is None else self.panel_size
        places = [self._place(row, j, size, self.stored) for j in range(form.columns)]
        # One for each line of memory, of which a vector of few bits is a small part.
        vectors_of_line = max(1, LINE_BYTES // (e.lanes * e.size(self.stored)))
        of_panel = form.columns // form.panels
        for j, place in enumerate(places):
            if j % of_panel % vectors_of_line == 0:
                # It may point past the weight's end, where a prefetch does nothing.
                e.prefetch(e.at(place, ahead, self.stored), is_read_once=form.is_read_once)
        vectors = [widened(e, place, form.dtype) for place in places]
        for half, weights in enumerate(zip(*vectors, strict=True)):
            first = half * form.rows * form.columns
            numbers = e.at(x, e.mul(e.add(k, self.height) if half else k, form.rows))
            for r in range(form.rows):
                # x has S last in memory, so that the numbers for a row of the weight are in one
                # line of cache.
                number = e.splat(e.load(e.at(numbers, r)))
                for j, weight in enumerate(weights):
                    index = first + r * form.columns + j
                    sums[index] = e.fma(number, weight, sums[index])
        return sums


@attrs.frozen(kw_only=True)
class RowDots:
    """`y = x @ weight.T`, of `x [R, K]` and weight `[N, K]`; x and y are float32.

    Args:
        rows: R.
        dtype: Of the weight.
        together: Rows of x whose sums are in registers together.
        weights: Rows of the weight likewise; a power of two.
    """

    rows: int
    dtype: str
    together: int
    weights: int

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        return f"rows_{self.rows}_{self.together}x{self.weights}_{self.dtype}"

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Write how many parts there are."""
        return e.min(self._num_blocks(e, buffers), e.mul(threads, PARTS_PER_THREAD))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Write the computation of some blocks of the weight, of which the last may reach back."""
        last_start = e.sub(buffers.size(1, 0), self.weights)
        whole, rest = divmod(self.rows, self.together)

        def block(index: Value, _: object) -> tuple[()]:
            start = e.min(e.mul(index, self.weights), last_start)

            def some(first: Value, _: object) -> tuple[()]:
                self._some(e, buffers, start, first, self.together)
                return ()

            if whole:  # a number that LLVM does not know, so that it does not write the loop out
                e.loop(0, e.sub(buffers.size(0, 0), rest), self.together, (), some)
            if rest:
                self._some(e, buffers, start, e.whole(whole * self.together), rest)
            return ()

        blocks = self._num_blocks(e, buffers)
        first = e.div(e.mul(part, blocks), parts)
        e.loop(first, e.div(e.mul(e.add(part, 1), blocks), parts), 1, (), block)

    def _num_blocks(self, e: Emitter, buffers: Buffers) -> Value:
        return e.div(e.add(buffers.size(1, 0), self.weights - 1), self.weights)

    def _some(
        self, e: Emitter, buffers: Buffers, start: Value, first_row: Value, rows: int
    ) -> None:
        depth, num_weights = buffers.size(0, 1), self.weights
        x = e.at(buffers.argument(0), e.mul(first_row, depth))
        weight = e.at(buffers.argument(1), e.mul(start, depth), self.dtype)
        later = e.at(weight, e.mul(depth, num_weights), self.dtype)

        def step(k: Value, sums: Sequence[Value]) -> list[Value]:
            sums = list(sums)
            # Several rows of the weight at a time: each vector of x is loaded once for all of
            # them, and sums do not wait for each other.
            offsets = [e.add(e.mul(depth, n), k) for n in range(num_weights)]
            weights = [widened(e, e.at(weight, at, self.dtype), self.dtype)[0] for at in offsets]
            for r in range(rows):
                xs = e.load_vector(e.at(x, e.add(e.mul(depth, r), k)))
                for n, one in enumerate(weights):
                    sums[r * num_weights + n] = e.fma(xs, one, sums[r * num_weights + n])
            return sums

        def line(k: Value, sums: Sequence[Value]) -> Sequence[Value]:
            for n in range(num_weights):
                e.prefetch(e.at(later, e.add(e.mul(depth, n), k), self.dtype))
            for vector in range(vectors_of_line):
                sums = step(e.add(k, vector * e.lanes), sums)
            return sums

        zeros = [e.full(0.0)] * (rows * num_weights)
        vectors_of_line = max(1, LINE_BYTES // (e.lanes * e.size(self.dtype)))
        size = vectors_of_line * e.lanes
        full = e.mul(e.div(depth, size), size)
        sums = [*e.loop(full, depth, e.lanes, e.loop(0, full, size, zeros, line), step)]
        piece = min(e.lanes, num_weights)
        for at in range(0, len(sums), e.lanes):
            some = sums[at : at + e.lanes]
            # Sums of lanes come last, and those of as many sums as there are lanes together, in
            # one tree of shuffles.
            added = e.sums([*some, *[e.full(0.0)] * (e.lanes - len(some))])
            for lane in range(0, len(some), piece):
                row, n = divmod(at + lane, num_weights)
                y = e.add(e.mul(e.add(first_row, row), buffers.size(1, 0)), e.add(start, n))
                lanes = e.shuffle(added, added, range(lane, lane + piece))
                e.store(lanes, e.at(buffers.result(0), y))
