"""Attention of the newest tokens over a cache, as a program of the host.

Letters: B batch rows, T queries of a row, N query heads, K key heads, G query heads of a key head,
H key width, V value width; M pages of the cache, C keys of a page, P pages of a row; L lanes of a
vector.

A part is some heads of a row. It goes over the row's keys once, L at a time, which are the lanes of
a vector of logits, with the online softmax of each query in memory that stays in a core's cache.
What is beyond a row's keys is not read: lanes without a key read the nearest one, and count for
nothing. A row's result is the same to the bit beside any others.
"""

import attrs
from llvmlite import ir

from axl_cpu.llvm.emitter import Emitter, Value
from axl_cpu.llvm.host_call import Buffers
from axl_cpu.llvm.numbers import exp, tanh, widened

PARTS_PER_THREAD = 4
_NOTHING = -1e30
"""Stands for minus infinity, of which differences are numbers."""


@attrs.frozen(kw_only=True)
class DecodeAttention:
    """The form of a call, whose arguments are those of `DecodeInputs` that it has.

    Args:
        queries: T.
        heads: N.
        key_heads: K.
        width: H, a multiple of L.
        value_width: V, a multiple of L.
        page_size: C; None where each row has room of its own.
        dtype: Of keys and values; queries and the result are float32.
        has_sinks: Whether there is one more logit for each head.
        is_scaled: Whether keys and values have scales.
        scale: Factor on the products.
        left: How many keys before its own a query sees; None is unbounded.
        soft_cap: What logits are capped at, smoothly.
    """

    queries: int
    heads: int
    key_heads: int
    width: int
    value_width: int
    page_size: int | None
    dtype: str
    has_sinks: bool
    is_scaled: bool
    scale: float
    left: int | None
    soft_cap: float | None

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        choices = attrs.astuple(self)
        return "attention_" + "_".join(str(one).replace(".", "p") for one in choices)

    @property
    def group(self) -> int:
        """G."""
        return self.heads // self.key_heads

    def index_of(self, name: str) -> int:
        """Returns which argument an array is."""
        has = {
            "q": True,
            "k": True,
            "v": True,
            "lengths": True,
            "page_table": self.page_size is not None,
            "sinks": self.has_sinks,
            "key_scale": self.is_scaled,
            "value_scale": self.is_scaled,
        }
        return [one for one, given in has.items() if given].index(name)

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Writes how many parts there are: rows, and heads apart where rows are few."""
        batch = buffers.size(0, 0)
        wanted = e.mul(threads, PARTS_PER_THREAD)
        some = e.div(e.add(wanted, e.sub(batch, 1)), batch)
        return e.mul(batch, e.max(e.min(some, self.key_heads), 1))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Writes the attention of some heads of a row."""
        per_row = e.div(parts, buffers.size(0, 0))
        row = e.div(part, per_row)
        index = e.sub(part, e.mul(row, per_row))
        first = e.div(e.mul(index, self.key_heads), per_row)
        behind = e.div(e.mul(e.add(index, 1), self.key_heads), per_row)
        _Row(self, e, buffers, row).emit(first, behind)


class _Row:
    """Some heads of a row."""

    def __init__(self, form: DecodeAttention, e: Emitter, buffers: Buffers, row: Value) -> None:
        self.form, self.e, self.row = form, e, row
        place = lambda name: buffers.argument(form.index_of(name))  # noqa: E731
        per_row = form.queries * form.heads
        self.q = e.at(place("q"), e.mul(row, per_row * form.width))
        self.o = e.at(buffers.result(0), e.mul(row, per_row * form.value_width))
        self.k, self.v = place("k"), place("v")
        if form.has_sinks:
            self.sinks = place("sinks")
        if form.is_scaled:
            self.key_scale, self.value_scale = place("key_scale"), place("value_scale")
        capacity = e.whole(0)
        if form.page_size is None:
            capacity = buffers.size(1, 1)
        else:
            num_pages = buffers.size(form.index_of("page_table"), 1)
            capacity = e.mul(num_pages, form.page_size)
            self.table = e.at(place("page_table"), e.mul(row, num_pages), "int32")
            self.last_page = e.sub(buffers.size(1, 0), 1)
        self.capacity = capacity
        self.length = e.min(e.load(e.at(place("lengths"), row, "int32"), "int32"), capacity)
        # What a query has: its largest logit, the sums of probabilities by lane, and of values.
        self.largest = e.room(per_row)
        self.totals = e.room(per_row * e.lanes)
        self.values = e.room(per_row * form.value_width)

    def emit(self, first_head: Value, behind: Value) -> None:
        e, form = self.e, self.form
        group_queries = form.group * form.queries

        def every_query(what: object):  # type: ignore[no-untyped-def]
            def of_head(head: Value, _: object) -> tuple[()]:
                e.loop(0, group_queries, 1, (), lambda i, _: what(head, i))  # type: ignore[operator]
                return ()

            return lambda: e.loop(first_head, behind, 1, (), of_head)

        every_query(self._start)()
        first = e.whole(0)
        if form.left is not None:
            first = e.max(e.sub(self.length, form.queries + form.left), 0)
        start = e.mul(e.div(first, e.lanes), e.lanes)

        def block(position: Value, _: object) -> tuple[()]:
            tokens = self._tokens(position, first)
            numbers = self._positions(position)

            def of_head(head: Value, _: object) -> tuple[()]:
                keys = [e.add(e.mul(token, form.key_heads), head) for token in tokens]
                scales = self._scales(keys)
                e.loop(
                    0, group_queries, 1, (), lambda i, _: self._step(head, i, keys, numbers, scales)
                )
                return ()

            e.loop(first_head, behind, 1, (), of_head)
            return ()

        e.loop(start, self.length, e.lanes, (), block)
        every_query(self._finish)()

    # -- Where things lie --------------------------------------------------------------------

    def _query(self, head: Value, i: Value) -> tuple[Value, Value]:
        """Returns which of the row's queries the i-th of a key head is, and its place in time."""
        e, form = self.e, self.form
        time = e.div(i, form.group)
        of_group = e.sub(i, e.mul(time, form.group))
        query_head = e.add(e.mul(head, form.group), of_group)
        return e.add(e.mul(time, form.heads), query_head), time

    def _tokens(self, position: Value, first: Value) -> list[Value]:
        """Returns the places in the cache of the tokens from a position on."""
        e, form = self.e, self.form
        last = e.sub(self.length, 1)
        positions = [
            e.max(e.min(e.add(position, lane), last), first) for lane in range(e.lanes)
        ]
        if form.page_size is None:
            start = e.mul(self.row, self.capacity)
            return [e.add(start, one) for one in positions]
        size = form.page_size
        if size % e.lanes:
            return [self._in_page(one, self._page(one)) for one in positions]
        page = self._page(e.max(position, first))
        return [self._in_page(one, page) for one in positions]

    def _page(self, position: Value) -> Value:
        e, size = self.e, self.form.page_size
        assert size is not None
        page = e.load(e.at(self.table, e.div(position, size), "int32"), "int32")
        return e.min(e.max(page, 0), self.last_page)

    def _in_page(self, position: Value, page: Value) -> Value:
        e, size = self.e, self.form.page_size
        assert size is not None
        place = e.sub(position, e.mul(e.div(position, size), size))
        return e.add(e.mul(page, size), place)

    def _positions(self, position: Value) -> Value:
        """Returns the positions of a block's lanes."""
        e = self.e
        lanes = ir.Constant(e.int_vector, [ir.Constant(ir.IntType(32), i) for i in range(e.lanes)])
        return e.build.add(e.splat(e.to_short(position)), lanes)

    def _scales(self, keys: list[Value]) -> tuple[Value, Value] | None:
        """Returns the scales of a block's keys, and of its values."""
        if not self.form.is_scaled:
            return None
        key_scale = value_scale = self.e.full(0.0)
        for lane, key in enumerate(keys):
            for_key = self.e.load(self.e.at(self.key_scale, key))
            for_value = self.e.load(self.e.at(self.value_scale, key))
            key_scale = self.e.with_lane(key_scale, lane, for_key)
            value_scale = self.e.with_lane(value_scale, lane, for_value)
        return key_scale, value_scale

    # -- The softmax of a query --------------------------------------------------------------

    def _start(self, head: Value, i: Value) -> tuple[()]:
        e, form = self.e, self.form
        query, _ = self._query(head, i)
        largest, total = e.number(_NOTHING), e.full(0.0)
        if form.has_sinks:
            group_head = e.sub(query, e.mul(e.div(query, form.heads), form.heads))
            largest = e.load(e.at(self.sinks, group_head))
            total = e.with_lane(total, 0, e.number(1.0))
        e.store(largest, e.at(self.largest, query))
        e.store(total, e.at(self.totals, e.mul(query, e.lanes)))
        values = e.at(self.values, e.mul(query, form.value_width))
        for j in range(0, form.value_width, e.lanes):
            e.store(e.full(0.0), e.at(values, j))
        return ()

    def _step(
        self,
        head: Value,
        i: Value,
        keys: list[Value],
        numbers: Value,
        scales: tuple[Value, Value] | None,
    ) -> tuple[()]:
        """Adds a block of keys and values to what a query has seen."""
        e, build = self.e, self.e.build
        query, time = self._query(head, i)
        logits = self._logits(query, keys, None if scales is None else scales[0])
        is_seen = self._is_seen(time, numbers)
        logits = build.select(is_seen, logits, e.full(_NOTHING))
        largest_at = e.at(self.largest, query)
        before = e.splat(e.load(largest_at))
        largest = e.maximum(before, e.splat(e.largest(logits)))
        e.store(e.lane(largest, 0), largest_at)
        kept = exp(e, build.fsub(before, largest))
        parts = build.select(is_seen, exp(e, build.fsub(logits, largest)), e.full(0.0))
        total_at = e.at(self.totals, e.mul(query, e.lanes))
        e.store(e.fma(e.load_vector(total_at), kept, parts), total_at)
        if scales is not None:
            parts = build.fmul(parts, scales[1])
        self._add_values(query, keys, kept, parts)
        return ()

    def _logits(self, query: Value, keys: list[Value], scale: Value | None) -> Value:
        e, form, build = self.e, self.form, self.e.build
        place = e.at(self.q, e.mul(query, form.width))
        steps = range(0, form.width, e.lanes)
        q = [e.load_vector(e.at(place, d)) for d in steps]

        def products(key: Value) -> Value:
            at = e.at(self.k, e.mul(key, form.width), form.dtype)
            found = e.full(0.0)
            for one, d in zip(q, steps, strict=True):
                found = e.fma(one, widened(e, e.at(at, d, form.dtype), form.dtype)[0], found)
            return found

        logits = build.fmul(_sums(e, [lambda key=key: products(key) for key in keys]), e.full(form.scale))
        if scale is not None:
            logits = build.fmul(logits, scale)
        if form.soft_cap is not None:
            capped = tanh(e, build.fmul(logits, e.full(1.0 / form.soft_cap)))
            logits = build.fmul(capped, e.full(form.soft_cap))
        return logits

    def _is_seen(self, time: Value, numbers: Value) -> Value:
        """Returns which lanes hold a key that a query sees."""
        e, form, build = self.e, self.form, self.e.build
        own = e.add(e.sub(self.length, form.queries), time)
        is_seen = build.icmp_signed("<=", numbers, e.splat(e.to_short(own)))
        if form.left is not None:
            first = e.splat(e.to_short(e.sub(own, form.left)))
            is_seen = build.and_(is_seen, build.icmp_signed(">=", numbers, first))
        return is_seen

    def _add_values(self, query: Value, keys: list[Value], kept: Value, parts: Value) -> None:
        e, form, build = self.e, self.form, self.e.build
        places = [e.at(self.v, e.mul(key, form.value_width), form.dtype) for key in keys]
        weights = [e.splat(e.lane(parts, lane)) for lane in range(e.lanes)]
        held = e.at(self.values, e.mul(query, form.value_width))
        for j in range(0, form.value_width, e.lanes):
            sums = [build.fmul(e.load_vector(e.at(held, j)), kept), e.full(0.0)]
            for lane, (place, weight) in enumerate(zip(places, weights, strict=True)):
                value = widened(e, e.at(place, j, form.dtype), form.dtype)[0]
                sums[lane % 2] = e.fma(weight, value, sums[lane % 2])
            e.store(build.fadd(*sums), e.at(held, j))

    def _finish(self, head: Value, i: Value) -> tuple[()]:
        e, form, build = self.e, self.form, self.e.build
        query, _ = self._query(head, i)
        total = e.splat(e.sum(e.load_vector(e.at(self.totals, e.mul(query, e.lanes)))))
        is_any = build.fcmp_ordered(">", total, e.full(0.0))
        factor = build.fdiv(e.full(1.0), build.select(is_any, total, e.full(1.0)))
        held = e.at(self.values, e.mul(query, form.value_width))
        o = e.at(self.o, e.mul(query, form.value_width))
        for j in range(0, form.value_width, e.lanes):
            e.store(build.fmul(e.load_vector(e.at(held, j)), factor), e.at(o, j))
        return ()


def _sums(e: Emitter, make: list) -> Value:  # type: ignore[type-arg]
    """Returns the sums of vectors, one a lane, in pairs of neighbours; a power of two of vectors."""
    if len(make) == 1:
        return make[0]()
    half = len(make) // 2
    first, second = _sums(e, make[:half]), _sums(e, make[half:])
    even = e.shuffle(first, second, range(0, 2 * e.lanes, 2))
    odd = e.shuffle(first, second, range(1, 2 * e.lanes, 2))
    return e.build.fadd(even, odd)
